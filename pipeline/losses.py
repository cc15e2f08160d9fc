"""Finds records that are lost unread: deleted, truncated, or of a topic that was recreated."""

from __future__ import annotations

from muster.client.network.cluster import Cluster
from muster.client.partitions import TopicPartition
from muster.pipeline.asking import Look, earliest_of_present, ends_of_epochs, ends_of_logs
from muster.pipeline.errors import data_lost
from muster.pipeline.offsets import Offsets
from muster.pipeline.options import SourceOptions


async def checked_starts(
    cluster: Cluster, options: SourceOptions, begun: Offsets, seen: Look, until: float
) -> dict[TopicPartition, int]:
    """Where to resume each existing partition after `begun`. New partitions, and those of a recreated topic,
    are read from their start. Raises DataLost, or logs it, if a log no longer has what `begun` refers to;
    records deleted at its start are left to the tasks, which will notice, and so is a log that is deleted
    meanwhile.
    """
    gone = sorted(begun.places.keys() - seen.ends.keys())
    if gone:
        data_lost(options, f"{', '.join(map(str, gone[:5]))}: deleted, or not among what is read any more")
    anew = {
        topic
        for topic, topic_id in begun.topic_ids.items()
        if seen.topic_ids.get(topic, topic_id) != topic_id
    }
    for topic in sorted(anew):
        data_lost(options, f"topic {topic} was deleted and created again; what was not read of it is gone")
    starts = {
        where: 0 if where.topic in anew else place.offset
        for where, place in begun.places.items()
        if where in seen.ends
    }
    epochs = {
        where: place.leader_epoch
        for where, place in begun.places.items()
        if starts.get(where, 0) > 0 and 0 <= place.leader_epoch < seen.ends[where].leader_epoch
    }
    cuts = {where: end for where, end in (await ends_of_epochs(cluster, epochs, until)).items() if end >= 0}
    ends = {where: seen.ends[where].offset for where in starts}
    if options.read_committed:
        # A stream that was read_uncommitted before may have read an open transaction.
        beyond = [where for where, start in starts.items() if start > ends[where]]
        ends |= await ends_of_logs(cluster, beyond, until)
    for where, start in starts.items():
        cut = min(ends[where], cuts.get(where, start))
        if cut < start:
            data_lost(options, f"the log of {where} was cut at offset {cut}, and was read up to {start}")
            starts[where] = cut
    new = dict.fromkeys((where for where in seen.ends if where not in starts), 0)
    new |= await earliest_of_present(cluster, options, new, until)
    for where, start in new.items():
        if start > 0:
            data_lost(options, f"{where} is new here, and its records before offset {start} were deleted")
        starts[where] = start
    return starts

"""The columns of the page's tables: heading, format of the values, and meaning (shown as a tooltip)."""

from __future__ import annotations

from typing import Final

from muster.pipeline.report.html_tables import COUNT, MOMENT, MS, NAME, RATE, SHARE, TEXT, Kind

_KINDS: Final = {
    "name": NAME, "text": TEXT, "count": COUNT, "ms": MS, "share": SHARE, "rate": RATE, "moment": MOMENT
}  # fmt: skip

Columns = tuple[tuple[str, str, Kind], ...]


def _columns(text: str) -> Columns:
    """Parse a line for each column: heading | kind | what it means."""
    found = []
    for line in text.strip().splitlines():
        heading, kind, about = (part.strip() for part in line.strip().split("|"))
        found.append((heading, about, _KINDS[kind]))
    return tuple(found)


GROUPS: Final = _columns(
    """
    Group          | name   | the group's id
    Partition-time | ms     | without an owner, summed over its partitions
    Rebalances     | count  | begun in this time, those under way included
    An hour        | rate   | rebalances that are over, an hour; where the group was there for about an hour
    Mostly because | text   | what was most often behind one
    Share          | share  | of its rebalances that had this behind them
    Median         | ms     | half of its rebalances took at most so long
    p95            | ms     | 95 % of its rebalances took at most so long
    Longest        | ms     | the longest one took
    Evictions      | count  | members put out: sessions that expired, and what admins did
    Moved          | count  | partitions that another member owned before
    Bounced        | count  | of those: the member it was taken from was still there
    Stable         | share  | share of the time in which it was, over the whole journal
    """
)
UNAVAILABILITY: Final = _columns(
    """
    Group          | name   | the group's id
    Partition-time | ms     | without an owner, summed over its partitions
    Longest        | ms     | the longest that one partition had no owner
    Rebalances     | count  | begun in this time
    """
)
GAPS: Final = _columns(
    """
    Group          | name   | the group's id
    Partition      | name   | topic and number
    Without owner  | ms     | for how long
    From           | moment | when its owner was last heard from, or stopped
    Until          | moment | when it had an owner again
    Because        | text   | what was behind the rebalance that gave it an owner again
    Before         | name   | who had it
    After          | name   | who got it
    """
)
COSTS: Final = _columns(
    """
    Behind it      | text   | the diagnosis, a word of docs/why.md
    Recorded       | text   | what the coordinator recorded at the moment
    Rebalances     | count  | how many
    Groups         | count  | of how many groups
    Median         | ms     | half of them took at most so long
    p95            | ms     | 95 % of them took at most so long
    Longest        | ms     | the longest one took
    Partition-time | ms     | without an owner, summed over partitions
    Moved          | count  | partitions that another member owned
    Bounced        | count  | of those: the old owner was still there
    Lag            | count  | records that came to wait, where lag is known
    Lag known      | count  | rebalances of which it is
    Recovered      | count  | of those: lag was seen to be back at what it was
    Recovery       | ms     | median time from the end of the rebalance until then
    Refused        | count  | commits refused: what they were for was delivered again
    """
)
WORST: Final = _columns(
    """
    Group          | name   | the group's id
    Began          | moment | when
    Took           | ms     | how long
    Behind it      | text   | the diagnosis
    Certainty      | text   | how far the evidence carries
    Generation     | count  | that it led to
    Members        | count  | at the end
    Moved          | count  | partitions that another member owned
    Partition-time | ms     | without an owner, summed over partitions
    Lag before     | count  | records behind as it began
    Lag at most    | count  | until it recovered
    """
)
DEPLOYS: Final = _columns(
    """
    Group          | name   | the group's id
    Began          | moment | when the first member went
    Took           | ms     | until the last one was back
    Restarted      | count  | members that came back as new processes
    Members        | count  | as it began
    Static         | text   | whether they have a group.instance.id
    Rebalances     | count  | that began in that time
    Moved          | count  | partitions that moved in those
    Bounced        | count  | of those: the old owner was still there
    Partition-time | ms     | without an owner in those
    """
)
AROUND: Final = _columns(
    """
    Time           | text   | of the three
    Length         | ms     | how long that was
    Rebalances     | count  | begun in it, of these groups
    An hour        | rate   | the same, an hour; of about an hour and more
    Partition-time | ms     | without an owner in those
    Median lag     | count  | of the samples, in records
    Highest lag    | count  | of the samples, in records
    """
)
FAILOVERS: Final = _columns(
    """
    When           | moment | the first of its shards was loaded
    Brokers        | text   | who had them, and who has them now
    Planned        | text   | whether the former broker gave them up; else it died or lost its lease
    Stood still    | ms     | at most: from when a shard was given up, or its broker heard of last
    Shards         | count  | of groups that moved
    Groups         | count  | in those
    Loading        | ms     | took at most so long for a shard
    Interrupted    | count  | rebalances that were under way
    After          | count  | rebalances that began within 5 minutes
    Lost           | count  | members that were not heard of since, and were put out
    """
)
LAG: Final = _columns(
    """
    Group          | name   | the group's id
    Highest        | count  | records behind, at most
    When           | moment | that was
    Median         | count  | of its samples, in records
    Last           | count  | sample, in records
    Samples        | count  | how many
    """
)
OPEN: Final = _columns(
    """
    Group          | name   | the group's id
    Began          | moment | when
    So far         | ms     | until the end of the journal
    State          | text   | the group's
    Behind it      | text   | as far as is known
    Member         | name   | who began it
    """
)
_ENDS: Final = """
    In an hour     | count  | the most ends within an hour
    Sessions       | count  | how often it was a member
    Ends           | count  | how often that ended
    Put out        | count  | of those: it was evicted
    Late           | count  | late heartbeats
    First          | moment | the first of the ends
    Last           | moment | the last
"""
FLAPPING_MEMBERS: Final = _columns(
    f"""
    Member         | name   | instance id, or client id and host
    Group          | name   | the group's id
    {_ENDS.strip()}
    """
)
FLAPPING_HOSTS: Final = _columns(
    f"""
    Host           | name   | where they ran
    Groups         | count  | in how many groups
    {_ENDS.strip()}
    """
)

"""What must be true of transactions, judged by what producers saw. Knows nothing of muster.

Each function compares what was sent and acknowledged (`history`) with what was found, and raises Violation.
Those about what is shown hold at any moment, the others at rest: when every producer has ended its
transaction or started over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.faults import batches
from tests.faults.batches import Violation
from tests.faults.checker import Committed
from tests.faults.transactions.history import Place, Producer, Slot, Transaction, Transactional

UNSTABLE: Final = 88
REFUSALS: Final = (47, 48, 49, 90)
"""Errors for a fenced producer: its epoch, its id, or the state it believes in is outdated."""
AT_REST: Final = ("Empty", "CompleteCommit", "CompleteAbort")


class Aborted(NamedTuple):
    """An aborted transaction reported by a Fetch."""

    producer_id: int
    first_offset: int


def committed(found: Iterable[batches.Batch], aborted: Iterable[Aborted]) -> list[bytes]:
    """The values of one Fetch that a client shows to readers of committed records."""
    ahead = deque(sorted(aborted, key=lambda each: each.first_offset))
    dropped: set[int] = set()
    values: list[bytes] = []
    for batch in found:
        while ahead and ahead[0].first_offset < batch.next_offset:
            dropped.add(ahead.popleft().producer_id)
        if batch.commits is not None:
            dropped.discard(batch.producer_id)
        elif not batch.transactional or batch.producer_id not in dropped:
            values += batch.values
    return values


def check_producer(before: Sequence[Producer], producer: Producer) -> None:
    """A coordinator never returns a producer that may equal an earlier one."""
    again = [each for each in before if each.id == producer.id and each.epoch >= producer.epoch]
    if producer.id < 0 or producer.epoch < 0 or again:
        raise Violation(f"{producer} was named after {before[-1] if before else None}")


def check_fenced(transaction: Transaction, code: int) -> None:
    """Check the error that its producer gets after another has replaced it."""
    if code not in REFUSALS:
        raise Violation(f"{transaction.name}: its producer was fenced, and is answered {code}")


# --- at any moment ------------------------------------------------------------------------------------------


def check_shown(place: Place, values: Iterable[bytes], known: Mapping[str, Transactional]) -> None:
    """A reader of committed records has just been shown these values."""
    for value in values:
        transaction = _of(place, value, known)
        if transaction.why_hidden:
            raise Violation(f"{_at(place)}: {value!r} is shown, and its transaction {transaction.why_hidden}")
        transaction.shown = True


def check_offset_shown(slot: Slot, found: Committed, known: Transactional) -> None:
    """A reader of committed offsets has just been shown this offset."""
    if (transaction := _committing(slot, found, known)) is None:
        return
    if transaction.why_hidden:
        raise Violation(f"{slot}: offset {found.offset} is shown, and {transaction.why_hidden}")
    transaction.shown = True


def check_stable_offset_shown(slot: Slot, code: int, found: Committed, known: Transactional) -> None:
    """The answer to a fetch of stable offsets only: no offset while one is pending."""
    if code == 0:
        check_offset_shown(slot, found, known)
    elif code != UNSTABLE or found.offset != -1:
        raise Violation(f"{slot}: answered {code} with {found}")


# --- at rest ------------------------------------------------------------------------------------------------


class Log(NamedTuple):
    """A partition as readers of committed records find it."""

    batches: Sequence[batches.Batch]
    shown: Sequence[bytes]
    stable_offset: int
    end_offset: int


def check_log(place: Place, log: Log, known: Mapping[str, Transactional]) -> None:
    """Check a whole log: no hole, no duplicate value, no open transaction, no older epoch of a producer after
    a newer one, and exactly what the markers commit is shown."""
    where = _at(place)
    offset = 0
    epochs: dict[int, int] = {}
    values: set[bytes] = set()
    open_: dict[int, list[batches.Batch]] = {}
    kept: list[batches.Batch] = []
    for batch in log.batches:
        here = f"{where}, offset {batch.base_offset}"
        if batch.base_offset != offset:
            raise Violation(f"{here}: a hole, offset {offset} is due")
        offset = batch.next_offset
        if batch.producer_epoch < epochs.get(batch.producer_id, 0):
            newer = f"of producer {batch.producer_id} behind {epochs[batch.producer_id]}"
            raise Violation(f"{here}: epoch {batch.producer_epoch} {newer}")
        epochs[batch.producer_id] = batch.producer_epoch
        if batch.commits is not None:
            ended = open_.pop(batch.producer_id, [])
            kept += ended if batch.commits else []
            continue
        if not batch.transactional:
            raise Violation(f"{here}: records outside a transaction, which nobody sent")
        if twice := values.intersection(batch.values):
            raise Violation(f"{here}: {sorted(twice)} are duplicates")
        values.update(batch.values)
        stored = Producer(batch.producer_id, batch.producer_epoch)
        for value in batch.values:
            if (sent := _of(place, value, known).producer) != stored:
                raise Violation(f"{here}: {value!r} of {sent} is stored as {stored}'s")
        open_.setdefault(batch.producer_id, []).append(batch)
    if open_:
        raise Violation(f"{where}: transactions of producers {sorted(open_)} are open")
    if not log.stable_offset == log.end_offset == offset:
        said = f"is said to end at {log.end_offset}, stable up to {log.stable_offset}"
        raise Violation(f"{where}: ends at {offset}, {said}")
    kept.sort(key=lambda each: each.base_offset)
    if [*log.shown] != (by_markers := [value for each in kept for value in each.values]):
        differ = sorted(set(log.shown) ^ set(by_markers)) or "their order"
        raise Violation(f"{where}: what is shown is not what markers say: {differ}")


def check_whole(
    known: Mapping[str, Transactional], shown: Mapping[Place, Sequence[bytes]]
) -> list[Transaction]:
    """Every transaction is shown completely or not at all, as acknowledged; returns those that are shown."""
    found: dict[tuple[str, int], dict[Place, list[bytes]]] = {}
    for place, values in shown.items():
        last: dict[str, int] = {}
        for value in values:
            transaction = _of(place, value, known)
            name, number = transaction.transactional_id, transaction.number
            if number < last.get(name, 0):
                raise Violation(f"{_at(place)}: {value!r} is shown behind transaction {last[name]}")
            last[name] = number
            found.setdefault((name, number), {}).setdefault(place, []).append(value)
    there = []
    for each in known.values():
        for transaction in each.transactions:
            parts = found.get((transaction.transactional_id, transaction.number))
            if _is_there(transaction, parts):
                there.append(transaction)
    return there


def _is_there(transaction: Transaction, parts: Mapping[Place, Sequence[bytes]] | None) -> bool:
    if parts is None:
        if transaction.why_shown:
            raise Violation(f"{transaction.name} {transaction.why_shown}, and is lost")
        return False
    if transaction.why_hidden:
        raise Violation(f"{transaction.name} {transaction.why_hidden}, and is shown: {parts}")
    places = {batch.place for batch in transaction.batches}
    for place in places | set(parts):
        if (here := tuple(parts.get(place, ()))) != transaction.values(place):
            wanted = transaction.values(place)
            raise Violation(f"{transaction.name} is shown in part: {_at(place)} has {here} of {wanted}")
    return True


def check_offset(
    slot: Slot, code: int, found: Committed, known: Transactional, there: Collection[int]
) -> None:
    """The stable offset of a slot is that of the last transaction whose records are there (by number)."""
    if code:
        raise Violation(f"{slot}: at rest its stable offset is answered {code}")
    transaction = _committing(slot, found, known)
    committing = [each for each in known.offsets(slot) if each.number in there]
    due = committing[-1] if committing else None
    if transaction is not due:
        wanted = "none" if due is None else f"that of {due.name}"
        raise Violation(f"{slot}: offset {found.offset} is committed, and {wanted} is due")


def check_at_rest(transactional_id: str, state: str) -> None:
    """Check the state that the coordinator reports."""
    if state not in AT_REST:
        raise Violation(f"{transactional_id} does not come to rest: it is {state}")


# ------------------------------------------------------------------------------------------------------------


def _of(place: Place, value: bytes, known: Mapping[str, Transactional]) -> Transaction:
    words = value.decode("utf-8", "replace").split()
    of = known.get(words[0]) if len(words) == 3 and words[1].isdigit() else None
    number = int(words[1]) if of is not None else 0
    if of is None or not 1 <= number <= len(of.transactions):
        raise Violation(f"{_at(place)}: {value!r}, which nobody sent")
    transaction = of.transactions[number - 1]
    if value in transaction.late:
        raise Violation(f"{_at(place)}: {value!r}, whose producer was fenced before it was sent")
    if value not in transaction.values(place):
        raise Violation(f"{_at(place)}: {value!r}, which was not sent there")
    return transaction


def _committing(slot: Slot, found: Committed, known: Transactional) -> Transaction | None:
    """The transaction that the offset belongs to; None for no offset."""
    if found.offset == -1:
        return None
    if not 1 <= found.offset <= len(known.transactions):
        raise Violation(f"{slot}: offset {found.offset}, which nobody sent")
    transaction = known.transactions[found.offset - 1]
    if slot not in transaction.slots or found.metadata != transaction.metadata:
        raise Violation(f"{slot}: offset {found.offset} with {found.metadata!r}, which nobody sent")
    return transaction


def _at(place: Place) -> str:
    return f"{place[0]}-{place[1]}"

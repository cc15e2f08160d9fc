"""Reads strace's output, and checks the order of events: arrival, write, sync, reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.faults.batches import Violation

WATCHED: Final = (
    "read,readv,recvfrom,recvmsg,write,writev,sendto,sendmsg,pwrite64,pwritev,fsync,fdatasync,openat,mkdir"
)
OPTIONS: Final = ["-yy", "-s", "0", "-e", f"trace={WATCHED}"]
"""Options for strace: show the files and connections behind descriptors, but not the bytes."""
DRAFT_ENDING: Final = ".new"
"""Suffix of files that are renamed when complete: until then nobody relies on them."""
_ARRIVALS: Final = ("read", "readv", "recvfrom", "recvmsg")
_SENDS: Final = ("write", "writev", "sendto", "sendmsg")
_WRITES: Final = ("write", "writev", "pwrite64", "pwritev")
_SYNCS: Final = ("fsync", "fdatasync")

_CALL: Final = re.compile(r"(\w+)\((.*)")
_RESUMED: Final = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_RESULT: Final = re.compile(r"\)\s+= (-?\d+)[^)]*$")
_DESCRIPTOR: Final = re.compile(r"^\d+<(.*?)>(?:[,)\s]|$)")
_PATH: Final = re.compile(r'"([^"]*)"')


class Call(NamedTuple):
    """A system call: the lines of the trace where it began and ended (equal if nothing came in between)."""

    name: str
    target: str
    """The file or connection behind its descriptor, or the path it names."""
    arguments: str
    begun: int
    ended: int
    result: int


def parse(text: str) -> list[Call]:
    """The finished calls of a trace written with `OPTIONS` and -f, in the order they ended."""
    found: list[Call] = []
    open_calls: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(text.splitlines()):
        thread, _, rest = line.partition(" ")
        rest = rest.strip()
        if resumed := _RESUMED.match(rest):
            begun = open_calls.pop(thread, None)
            if begun is None:
                continue  # it began before tracing started
            name, arguments, first = begun
            arguments += resumed.group(2)
        elif call := _CALL.match(rest):
            name, arguments, first = call.group(1), call.group(2), number
            if arguments.endswith("<unfinished ...>"):
                open_calls[thread] = (name, arguments.removesuffix("<unfinished ...>"), first)
                continue
        else:
            continue  # a signal, an exit
        result = _RESULT.search(arguments)
        if result is not None:
            found.append(Call(name, _target(arguments), arguments, first, number, int(result.group(1))))
    return found


def _target(arguments: str) -> str:
    if (descriptor := _DESCRIPTOR.match(arguments)) is not None:
        return descriptor.group(1)
    path = _PATH.search(arguments)
    return path.group(1) if path is not None else ""


def exchanges(calls: Sequence[Call], client_port: int) -> list[tuple[Call, Call]]:
    """Each reply sent over a client's connection, with the call that received the end of its request, for a
    client with at most one request in flight."""
    found: list[tuple[Call, Call]] = []
    arrived: Call | None = None
    for call in calls:
        if not call.target.startswith("TCP") or not call.target.endswith(f":{client_port}]"):
            continue
        if call.name in _ARRIVALS and call.result > 0:
            arrived = call
        elif call.name in _SENDS and call.result > 0:
            if arrived is None:
                raise Violation(f"a reply before any request, at line {call.begun}")
            found.append((arrived, call))
    return found


def check_synced(calls: Sequence[Call], exchange: tuple[Call, Call], file_ending: str) -> None:
    """Between a request's arrival and its reply, everything written to the file was synced."""
    arrived, reply = exchange
    between = [each for each in calls if arrived.ended < each.ended and each.begun < reply.begun]
    here = [each for each in between if each.target.endswith(file_ending)]
    written = [each for each in here if each.name in _WRITES and each.result > 0]
    if not written:
        raise Violation(f"nothing was written to {file_ending} before the reply at line {reply.begun}")
    synced = [each for each in here if each.name in _SYNCS and each.result == 0 and each.ended < reply.begun]
    last = written[-1]
    if not any(each.begun > last.ended for each in synced):
        raise Violation(
            f"{last.target} was written at line {last.begun} and not synced before the reply at line "
            f"{reply.begun}"
        )


def check_names_synced(calls: Sequence[Call], exchange: tuple[Call, Call], below: str) -> int:
    """The names of files and folders created below a path before the reply were synced too, in their parent
    folder. Returns how many there were."""
    _, reply = exchange
    made: dict[str, Call] = {}
    for call in calls:
        creates = call.name == "mkdir" or (call.name == "openat" and "O_CREAT" in call.arguments)
        name = _PATH.search(call.arguments)
        if not creates or name is None or call.result < 0 or call.begun > reply.begun:
            continue
        if name.group(1).startswith(below) and not name.group(1).endswith(DRAFT_ENDING):
            made.setdefault(name.group(1), call)
    for path, call in made.items():
        folder = path.rpartition("/")[0]
        if not any(
            each.name == "fsync"
            and each.target == folder
            and call.ended < each.begun
            and each.ended < reply.begun
            for each in calls
        ):
            raise Violation(
                f"{path} was made, and its name not synced before the reply at line {reply.begun}"
            )
    return len(made)

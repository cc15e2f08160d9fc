"""Drops the parts of a sequence that a difference does not need."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from tests.kafka.differences import Difference

_NAMES = re.compile(r"\$\w+|\[[^]]*\]")
_NUMBERS = re.compile(r"\d+")


class Signature(NamedTuple):
    """What two sightings of one finding share: the answer, the field, and what each broker said."""

    reply: str
    field: str
    theirs: str
    ours: str


def signature(difference: Difference) -> Signature:
    _, _, api = difference.reply.partition(" ")
    return Signature(
        re.sub(r" \(\d+\)$", "", api),
        _NAMES.sub("", difference.field),
        *(
            _NAMES.sub("$", _NUMBERS.sub("0", word)) if "error_code" not in difference.field else word
            for word in (difference.theirs, difference.ours)
        ),
    )


async def shrunk(lines: Sequence[str], still_differs: Callable[[list[str]], Awaitable[bool]]) -> list[str]:
    """The sequence without the steps that can be dropped, one at a time or many, while it `still_differs`.
    Header lines stay."""
    header = [line for line in lines if not line or line.startswith(("topic ", "group "))]
    steps = [line for line in lines if line not in header]
    size = len(steps) // 2
    while size >= 1:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if fewer and await still_differs([*header, *fewer]):
                steps = fewer
            else:
                start += size
        # A pass over single steps that dropped one may have made another redundant.
        size //= 2
    return [*header, *steps]

"""Damaged bytes: at random, and where it hurts."""

from __future__ import annotations

import random
from typing import Final

from muster.protocol.source import uvarint
from tests.fuzz.marked import VARINT, Element, Mark, Marked

EDGE_BYTES: Final = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF)
"""Bytes at which varints, lengths and markers change their meaning."""

_EDGES: Final = (
    *(0, 1, 2, -1, -2, 0x7E, 0x7F, 0x80, 0x81, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xFFFF),
    *(50_000, 50_001, 0xFFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF, 1 << 62, -(1 << 63)),
)
_NEAR: Final = (-2, -1, 1, 2, 3, 10)


def garbage(rng: random.Random, length_max: int) -> bytes:
    """Random bytes; half of the time mostly from EDGE_BYTES."""
    length = rng.randrange(length_max + 1)
    if rng.random() < 0.5:
        return rng.randbytes(length)
    return bytes(rng.choice(EDGE_BYTES) if rng.random() < 0.7 else rng.randrange(256) for _ in range(length))


def damaged(rng: random.Random, data: bytes, times_max: int = 4) -> bytes:
    """`data` with a few changes: bytes changed, inserted, removed or repeated, or the rest replaced by
    garbage."""
    broken = bytearray(data)
    for _ in range(rng.randint(1, times_max)):
        at = rng.randrange(len(broken) + 1)
        match rng.randrange(8):
            case 0 | 1 | 2:
                broken[at : at + 1] = bytes((rng.choice(EDGE_BYTES),))
            case 3:
                broken[at : at + 1] = bytes((rng.randrange(256),))
            case 4:
                broken[at:at] = garbage(rng, 8)
            case 5:
                del broken[at : at + rng.randint(1, 8)]
            case 6:
                broken[at:] = garbage(rng, 8)
            case 7:
                broken[at:at] = broken[at : at + rng.randint(1, 64)]
    return bytes(broken)


def lying(rng: random.Random, valid: Marked) -> bytes:
    """`valid` with one to three of its lengths, counts, tags, markers or numbers replaced, and everything
    else unchanged."""
    if not valid.marks:
        return valid.data
    chosen = {rng.randrange(len(valid.marks)) for _ in range(rng.randint(1, 3))}
    data = valid.data
    for index in sorted(chosen, reverse=True):  # from the end, so that earlier positions stay valid
        mark = valid.marks[index]
        data = data[: mark.at] + _lie(rng, mark) + data[mark.at + mark.width :]
    return data


def _lie(rng: random.Random, mark: Mark) -> bytes:
    number = mark.number + rng.choice(_NEAR) if rng.random() < 0.4 else rng.choice(_EDGES)
    if mark.code == VARINT and rng.random() < 0.3:
        return odd_varint(rng, mark.number if rng.random() < 0.5 else number)
    if mark.meaning == "tags" and rng.random() < 0.3:
        return _with_unknown_tags(rng, mark)
    return mark.written(number)


def odd_varint(rng: random.Random, number: int) -> bytes:
    """`number` encoded longer than needed (allowed up to five bytes), too long, or unterminated."""
    written = bytearray(uvarint(number & 0xFFFF_FFFF))
    written[-1] |= 0x80
    written += b"\x80" * rng.randrange(10)
    if rng.random() < 0.8:
        written.append(rng.choice((0x00, 0x00, 0x01, 0x0F, 0x10, 0x7F)))
    return bytes(written)


def _with_unknown_tags(rng: random.Random, mark: Mark) -> bytes:
    """More tags than before, each with its value, in order or not."""
    count = rng.randint(1, 4)
    tags = b""
    for tag in rng.sample((0, 1, 2, 3, 5, 100, 127, 128, 20_000, 0xFFFF_FFFF), count):
        content = garbage(rng, 6)
        size = len(content) if rng.random() < 0.8 else rng.choice(_EDGES) & 0xFFFF_FFFF
        tags += uvarint(tag) + uvarint(size) + content
    return mark.written(mark.number + count) + tags


def regrouped(rng: random.Random, valid: Marked, bytes_max: int = 4096) -> bytes:
    """`valid` with an element of one array repeated or removed, and its count right or off by one."""
    if not valid.elements:
        return lying(rng, valid)
    element = rng.choice(valid.elements)
    times = rng.choice((0, 0, 2, 3, 5, 17, 127, 128))
    times = min(times, max(bytes_max // max(element.end - element.begin, 1), 2))
    return repeated(valid, element, times, rng.choice((0, 0, 0, -1, 1)))


def repeated(valid: Marked, element: Element, times: int, wrong_by: int = 0) -> bytes:
    """`valid` with `element` occurring `times` times, and its array's count wrong by `wrong_by`."""
    data, mark = valid.data, valid.marks[element.counter]
    return b"".join(
        (
            data[: mark.at],
            mark.written(mark.number + times - 1 + wrong_by),
            data[mark.at + mark.width : element.begin],
            data[element.begin : element.end] * times,
            data[element.end :],
        )
    )

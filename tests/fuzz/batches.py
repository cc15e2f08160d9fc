"""Damaged record batches: in the header, in the records under a correct checksum, or in the compressed
bytes."""

from __future__ import annotations

import random
import struct as structs
from typing import Final, NamedTuple

import cramjam
import google_crc32c

from muster.protocol.compression import Codec, compress
from muster.protocol.record_batch import HEADER_BYTES, Record, build
from tests.fuzz.mutations import damaged, garbage

_CODEC_MASK: Final = 0x07
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_ATTRIBUTES_AT: Final = 21
_LENGTH_FROM: Final = 12

_FIELDS: Final = (
    (0, ">q"),  # base offset
    (8, ">i"),  # length
    (12, ">i"),  # leader epoch
    (16, ">b"),  # magic
    (21, ">h"),  # attributes
    (23, ">i"),  # last offset delta
    (27, ">q"),  # base timestamp
    (35, ">q"),  # max timestamp
    (43, ">q"),  # producer id
    (51, ">h"),  # producer epoch
    (53, ">i"),  # base sequence
    (57, ">i"),  # record count
)
_NUMBERS: Final = (0, 1, 2, 3, -1, -2, 7, 61, 49, 48, 0x7F, 0x7FFF, 1 << 20, (1 << 31) - 1, -(1 << 31))
_WIDE: Final = (*_NUMBERS, (1 << 63) - 1, -(1 << 63), 1 << 40)

_LARGE_BYTES: Final = 1 << 16

BOMB_BYTES: Final = 64 << 20
"""The decompressed size of a bomb: four times what any topic of the tests accepts."""


class Batch(NamedTuple):
    data: bytes
    plain: bytes
    """Its records, decompressed."""


class Batches:
    """Valid batches of every codec and shape, and bombs, all from one seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"{seed} batches")
        self.valid = [batch for codec in Codec for batch in _shapes(rng, codec)]
        self._small = [batch for batch in self.valid if len(batch.plain) < _LARGE_BYTES]
        self._large = [batch for batch in self.valid if len(batch.plain) >= _LARGE_BYTES]
        self._bombs: list[bytes] = []

    def make(self, rng: random.Random) -> bytes:
        """Return one batch or a few, possibly valid."""
        # Large ones are slow, and differ from small ones only in their compressed blocks.
        batch = rng.choice(self._large if rng.random() < 0.005 else self._small)
        data = batch.data
        match rng.randrange(16):
            case 0:
                return data
            case 1 | 2 | 3 | 4 | 5:
                return resealed(_with_odd_fields(rng, data))
            case 6:
                return _with_odd_fields(rng, data)
            case 7 | 8 | 9 | 10:
                return _repacked(rng, batch)
            case 11 | 12:
                return resealed(data[:HEADER_BYTES] + damaged(rng, data[HEADER_BYTES:]))
            case 13:
                return damaged(rng, data)
            case 14:
                return data + damaged(rng, rng.choice(self._small).data, 1)
        return resealed(data[:HEADER_BYTES] + garbage(rng, 200))

    def bomb(self, rng: random.Random) -> bytes:
        """A small batch that decompresses to BOMB_BYTES and may claim to hold any number of records."""
        bomb = rng.choice(self.bombs())
        return resealed(_with_odd_fields(rng, bomb, (57, 23))) if rng.random() < 0.5 else bomb

    def bombs(self) -> list[bytes]:
        """One bomb of each codec. Compressing them takes a moment."""
        if not self._bombs:
            for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
                header = build([Record(0, 0, None, b"")], codec=codec)[:HEADER_BYTES]
                self._bombs.append(resealed(header + compress(codec, bytes(BOMB_BYTES))))
        return self._bombs


def resealed(batch: bytes) -> bytes:
    """`batch` with its length and checksum corrected to match its bytes, if it holds a header at all."""
    if len(batch) < HEADER_BYTES:
        return batch
    sealed = bytearray(batch)
    structs.pack_into(">i", sealed, 8, len(sealed) - _LENGTH_FROM)
    structs.pack_into(">I", sealed, _CRC_AT, google_crc32c.value(bytes(sealed[_CRC_FROM:])))
    return bytes(sealed)


def _with_odd_fields(rng: random.Random, batch: bytes, only: tuple[int, ...] = ()) -> bytes:
    fields = [field for field in _FIELDS if not only or field[0] in only]
    odd = bytearray(batch)
    for _ in range(rng.randint(1, 2)):
        at, form = rng.choice(fields)
        (number,) = structs.unpack_from(form, odd, at)
        number = number + rng.choice((-1, 1)) if rng.random() < 0.3 else rng.choice(_WIDE)
        bits = 8 * structs.calcsize(form)
        number &= (1 << bits) - 1
        odd[at : at + bits // 8] = number.to_bytes(bits // 8, "big")
    return bytes(odd)


def _repacked(rng: random.Random, batch: Batch) -> bytes:
    """The batch with its records damaged before compression, so that codec and checksum are right."""
    codec = Codec(rng.randrange(5)) if rng.random() < 0.3 else Codec.NONE
    plain = damaged(rng, batch.plain)
    bare = codec is Codec.SNAPPY and rng.random() < 0.5  # as librdkafka compresses it: one block, no framing
    packed = bytes(cramjam.snappy.compress_raw(plain)) if bare else compress(codec, plain)
    header = bytearray(batch.data[:HEADER_BYTES])
    header[_ATTRIBUTES_AT + 1] = header[_ATTRIBUTES_AT + 1] & ~_CODEC_MASK | codec
    return resealed(bytes(header) + packed)


def _shapes(rng: random.Random, codec: Codec) -> list[Batch]:
    now_ms = 1_700_000_000_000
    headers = (("h", b"v"), ("é", None), ("", b""))
    shapes: list[tuple[list[Record], dict[str, object]]] = [
        ([Record(0, now_ms, b"k", b"v")], {}),
        ([Record(i, now_ms + i, b"key", rng.randbytes(rng.randrange(150))) for i in range(20)], {}),
        ([Record(i, -1, None, b"v") for i in range(5)], {}),
        ([Record(i, now_ms - i, b"k", None, headers) for i in range(4)], {}),
        ([Record(0, now_ms, b"k", b"v" * 70_000)], {}),
        ([Record(i, now_ms, b"k", b"v") for i in range(3)], {"log_append_time_ms": now_ms}),
        (
            [Record(i, now_ms, b"k", b"v") for i in range(3)],
            {"producer_id": 7, "producer_epoch": 1, "base_sequence": 2**31 - 2},
        ),
        ([Record(0, now_ms, b"\0\0\0\1", b"\0\0\0\0\0\0")], {"transactional": True, "control": True}),
        ([Record(i, now_ms, b"k", None) for i in (2, 5)], {"delete_horizon_ms": now_ms}),
        ([], {"base_offset": 3, "last_offset": 9, "max_timestamp": now_ms}),
    ]
    built = []
    for records, options in shapes:
        packed = build(records, codec=codec, **options)  # type: ignore[arg-type]
        plain = build(records, **options)[HEADER_BYTES:]  # type: ignore[arg-type]
        built.append(Batch(packed, plain))
    return built

"""The rules that a produced batch must meet to enter a log (Kafka's LogValidator and ProduceRequest)."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from muster.coordinator.topics.config import TopicConfig
from muster.protocol.compression import (
    DECOMPRESSED_BYTES_MAX,
    Codec,
    UnpackedTooLarge,
    lz4_blocks_depend,
    lz4_frames_follow,
    lz4_has_dictionary,
)
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORDS_BLAMED_MAX,
    Checked,
    Header,
    batch_size,
    check_records,
    crc_matches,
    payload,
    peek,
    records,
    with_codec,
    with_create_time,
    with_log_append_time,
)

_UNPACKED_RATIO_MAX: Final = 16
_UNPACKED_BYTES_ALWAYS: Final = 16 << 20
"""What a batch may unpack to in any topic; above that, 16 times the topic's max.message.bytes."""

_BYTES_AT_ONCE: Final = 256 << 10
_RECORDS_AT_ONCE: Final = 4_000
"""A batch of this size is validated within a few milliseconds."""


class Validated(NamedTuple):
    """A batch ready to be stored. `log_append_time_ms` is -1 when the producer's timestamps stand."""

    batch: bytes
    header: Header
    log_append_time_ms: int


class Laborious(Exception):
    """The batch takes long to validate: do it where nobody waits behind it."""


class InvalidRecords(KafkaError):
    """Names the records to blame, as Produce v8 and later report them (KIP-467)."""

    def __init__(self, code: ErrorCode, why: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, why)
        self.record_errors = record_errors
        """(index in the batch, why)."""


def validate(
    data: bytes,
    config: TopicConfig,
    now_ms: int,
    *,
    zstd_allowed: bool = True,
    transactional: bool = False,
    at_once: bool = False,
) -> Validated:
    """Check a produced record set and stamp or recompress it as the topic demands. For the codes see
    `Partitions.append`. `transactional`: whether it came with a transactional id.

    `at_once` gives up with Laborious if it would take more than a few milliseconds.
    """
    header = _one_batch(data)
    _check_size(header, config)
    if at_once and (header.size > _BYTES_AT_ONCE or header.record_count > _RECORDS_AT_ONCE):
        raise Laborious
    if not crc_matches(data, 0, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
    _check_header(header, zstd_allowed=zstd_allowed, transactional=transactional)
    unpacked = _unpacked(data, header, config, at_once=at_once)
    try:
        checked = check_records(unpacked, header)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error
    if config.compacts and checked.keyless:
        why = "records of a compacted topic must have a key"
        whole = f"{why}: {checked.keyless_count} of {header.record_count} have none"
        raise InvalidRecords(ErrorCode.INVALID_RECORD, whole, [(index, why) for index in checked.keyless])
    if header.is_log_append_time:
        why = "only the broker may mark a batch as LogAppendTime"
        blamed = range(min(header.record_count, RECORDS_BLAMED_MAX))
        raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, why, [(index, why) for index in blamed])
    batch, log_append_time_ms = data, -1
    if config.log_append_time:
        batch, log_append_time_ms = with_log_append_time(data, header, now_ms), now_ms
    else:
        _check_times(data, header, checked, config, now_ms)
        batch = with_create_time(data, header, checked.max_timestamp)
    target = _target_codec(header, config)
    if target != header.codec:
        batch = with_codec(batch, peek(batch), unpacked, target)
        _check_size(peek(batch), config)
    return Validated(batch, header if batch is data else peek(batch), log_append_time_ms)


def _one_batch(data: bytes) -> Header:
    """The header of the only batch: since Produce v3 a partition's record set holds exactly one, of magic
    2."""
    if len(data) <= MAGIC_POSITION:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request holds no record batch for the partition")
    if data[MAGIC_POSITION] != MAGIC:
        why = f"message format {data[MAGIC_POSITION]} is not supported; send {MAGIC} (Kafka 0.11 or later)"
        existed = data[MAGIC_POSITION] < MAGIC
        raise KafkaError(ErrorCode.INVALID_RECORD if existed else ErrorCode.CORRUPT_MESSAGE, why)
    size = batch_size(data)
    if size > len(data):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"the batch has {size} bytes, but only {len(data)} were sent"
        )
    try:
        header = peek(data)
    except DecodeError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header.size < len(data):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a partition's record set must hold exactly one batch")
    return header


def _check_size(header: Header, config: TopicConfig) -> None:
    if header.size > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.size} bytes exceeds max.message.bytes={config.max_message_bytes}",
        )
    if header.size > config.segment_bytes_max:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {header.size} bytes exceeds segment.bytes={config.segment_bytes_max}",
        )


def _unpacked(data: bytes, header: Header, config: TopicConfig, *, at_once: bool) -> bytes:
    """The batch's records section. MESSAGE_TOO_LARGE (10) beyond this broker's bound: Java's producer then
    splits the batch and sends the parts. INVALID_RECORD (87) beyond the topic's own bound."""
    if header.codec == Codec.LZ4 and lz4_blocks_depend(data, HEADER_BYTES):
        raise KafkaError(ErrorCode.INVALID_RECORD, "lz4 frames with dependent blocks are not supported")
    if header.codec == Codec.LZ4 and lz4_has_dictionary(data, HEADER_BYTES):
        raise KafkaError(ErrorCode.INVALID_RECORD, "lz4 frames with a dictionary are not supported")
    if header.codec == Codec.LZ4 and lz4_frames_follow(data, HEADER_BYTES):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a batch must be one lz4 frame: readers stop behind it")
    allowed = max(_UNPACKED_BYTES_ALWAYS, _UNPACKED_RATIO_MAX * config.max_message_bytes)
    allowed = min(allowed, DECOMPRESSED_BYTES_MAX)  # whoever reads the log later unpacks no more than that
    bounded_by_topic = header.codec != Codec.NONE and config.max_decompressed_message_bytes < allowed
    if bounded_by_topic:
        allowed = config.max_decompressed_message_bytes
    try:
        return payload(data, 0, header, bytes_max=min(_BYTES_AT_ONCE, allowed) if at_once else allowed)
    except DecodeError as error:
        if at_once:
            raise Laborious from None
        if isinstance(error, UnpackedTooLarge):
            if bounded_by_topic:
                why = f"the batch decompresses to more than max.decompressed.message.bytes={allowed}"
                raise KafkaError(ErrorCode.INVALID_RECORD, why) from error
            why = (
                f"the batch decompresses to more than {allowed} bytes, the limit for max.message.bytes="
                f"{config.max_message_bytes}"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, why) from error
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error


def _check_header(header: Header, *, zstd_allowed: bool, transactional: bool) -> None:
    if header.codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {header.codec}")
    if header.codec == Codec.ZSTD and not zstd_allowed:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 or later (KIP-110)")
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.is_transactional and not transactional:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without transactional id"
        )
    if header.base_offset != 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"a produced batch must have base offset 0, not {header.base_offset}"
        )
    if header.record_count == 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch holds no records")
    if (header.producer_id != NO_PRODUCER_ID or header.is_transactional) and (
        header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0
    ):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"invalid producer id {header.producer_id}, epoch {header.producer_epoch} or sequence "
            f"{header.base_sequence}",
        )


def _check_times(data: bytes, header: Header, checked: Checked, config: TopicConfig, now_ms: int) -> None:
    """INVALID_TIMESTAMP (32) outside message.timestamp.before.max.ms and .after.max.ms around `now_ms`
    (KIP-937), with the records to blame."""
    before_max_ms, after_max_ms = (
        config.message_timestamp_before_max_ms,
        config.message_timestamp_after_max_ms,
    )
    earliest, latest = now_ms - before_max_ms, now_ms + after_max_ms
    early = checked.min_timestamp != NO_TIMESTAMP and checked.min_timestamp < earliest
    if not early and checked.max_timestamp <= latest:
        return
    wrong = (
        index
        for index, record in enumerate(records(data, 0, header))
        if record.timestamp > latest or NO_TIMESTAMP != record.timestamp < earliest
    )
    if early:
        named = f"{checked.min_timestamp} is more than message.timestamp.before.max.ms={before_max_ms} behind"
    else:
        named = f"{checked.max_timestamp} is more than message.timestamp.after.max.ms={after_max_ms} ahead of"
    raise InvalidRecords(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {named} the broker's {now_ms}",
        [(index, "timestamp out of range") for index in islice(wrong, RECORDS_BLAMED_MAX)],
    )


def _target_codec(header: Header, config: TopicConfig) -> Codec:
    match config.compression_type:
        case "producer":
            return Codec(header.codec)
        case "uncompressed":
            return Codec.NONE
        case name:
            return Codec[name.upper()]

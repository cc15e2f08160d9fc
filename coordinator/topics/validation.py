"""What a produced batch must be before it may enter a log (Kafka's LogValidator and ProduceRequest rules)."""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.coordinator.topics.config import INT64_MAX, TopicConfig
from muster.protocol.compression import DECOMPRESSED_BYTES_MAX, Codec, UnpackedTooLarge
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.record_batch import (
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Checked,
    Header,
    check_records,
    crc_matches,
    payload,
    peek,
    with_codec,
    with_create_time,
    with_log_append_time,
)

_UNPACKED_RATIO_MAX: Final = 16
_UNPACKED_BYTES_ALWAYS: Final = 16 << 20
"""What a batch may unpack to in any topic; above that, 16 times the topic's max.message.bytes."""

_BYTES_AT_ONCE: Final = 256 << 10
_RECORDS_AT_ONCE: Final = 4_000
"""What is validated within a few milliseconds."""


class Validated(NamedTuple):
    """A batch as it is to be stored. `log_append_time_ms` is -1 when the producers' timestamps stand."""

    batch: bytes
    header: Header
    log_append_time_ms: int


class Laborious(Exception):
    """The batch takes long to validate: do it where nobody waits behind it."""


class InvalidRecords(KafkaError):
    """INVALID_RECORD with the records to blame: what Produce v8 and later say per record (KIP-467)."""

    def __init__(self, why: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, why)
        self.record_errors = record_errors
        """(index in the batch, why)."""


def validate(
    data: bytes, config: TopicConfig, now_ms: int, *, zstd_allowed: bool = True, at_once: bool = False
) -> Validated:
    """Check a produced record set and stamp or recompress it as the topic demands. For the codes see
    `Partitions.append`.

    `at_once` gives up with Laborious where it would take more than some milliseconds.
    """
    header = _one_batch(data)
    _check_size(header, config)
    if at_once and (header.size > _BYTES_AT_ONCE or header.record_count > _RECORDS_AT_ONCE):
        raise Laborious
    if not crc_matches(data, 0, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
    _check_header(header, zstd_allowed=zstd_allowed)
    unpacked = _unpacked(data, header, config, at_once=at_once)
    try:
        checked = check_records(unpacked, header)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error
    if config.compacts and checked.keyless:
        why = "compacted topics take no records without a key"
        whole = f"{why}: {checked.keyless_count} of {header.record_count} have none"
        raise InvalidRecords(whole, [(index, why) for index in checked.keyless])
    batch, log_append_time_ms = data, -1
    if config.log_append_time:
        batch, log_append_time_ms = with_log_append_time(data, header, now_ms), now_ms
    else:
        _check_times(header, checked, config, now_ms)
        batch = with_create_time(data, header, checked.max_timestamp)
    target = _target_codec(header, config)
    if target != header.codec:
        batch = with_codec(batch, peek(batch), unpacked, target)
        _check_size(peek(batch), config)
    return Validated(batch, header if batch is data else peek(batch), log_append_time_ms)


def _one_batch(data: bytes) -> Header:
    """The header of the only batch: since Produce v3 a partition's record set holds exactly one, of magic
    2."""
    if not data:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request holds no record batch for the partition")
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != MAGIC:
        why = f"message format {data[MAGIC_POSITION]} is not supported, only {MAGIC} (from Kafka 0.11 on) is"
        raise KafkaError(ErrorCode.INVALID_RECORD, why)
    try:
        header = peek(data)
    except DecodeError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if header.size > len(data):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.size} bytes in {len(data)} bytes")
    if header.size < len(data):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a partition's record set holds exactly one batch")
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
    """The batch's records section. MESSAGE_TOO_LARGE (10) beyond what the topic bounds it to: Java's producer
    splits the batch then and sends the parts."""
    allowed = max(_UNPACKED_BYTES_ALWAYS, _UNPACKED_RATIO_MAX * config.max_message_bytes)
    allowed = min(allowed, DECOMPRESSED_BYTES_MAX)  # whoever reads the log later unpacks no more than that
    try:
        return payload(data, 0, header, bytes_max=_BYTES_AT_ONCE if at_once else allowed)
    except DecodeError as error:
        if at_once:
            raise Laborious from None
        if isinstance(error, UnpackedTooLarge):
            why = (
                f"the batch unpacks to more than {allowed} bytes, the bound where max.message.bytes is "
                f"{config.max_message_bytes}"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, why) from error
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error


def _check_header(header: Header, *, zstd_allowed: bool) -> None:
    if header.codec > Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {header.codec} does not exist"
        )
    if header.codec == Codec.ZSTD and not zstd_allowed:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd is allowed from Produce v7 on (KIP-110)"
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.is_transactional:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported by this broker")
    if header.base_offset != 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"a produced batch has base offset 0, not {header.base_offset}"
        )
    if header.record_count == 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch holds no records")
    if header.producer_id != NO_PRODUCER_ID and (
        header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0
    ):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}",
        )


def _check_times(header: Header, checked: Checked, config: TopicConfig, now_ms: int) -> None:
    """INVALID_TIMESTAMP (32) outside message.timestamp.before.max.ms and .after.max.ms around `now_ms`
    (KIP-937)."""
    if header.is_log_append_time:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker may mark a batch as LogAppendTime")
    if checked.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {checked.max_timestamp} is more than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} ahead of the broker's {now_ms}",
        )
    oldest, before_max_ms = checked.min_timestamp, config.message_timestamp_before_max_ms
    if oldest != NO_TIMESTAMP and before_max_ms != INT64_MAX and now_ms - oldest > before_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {oldest} is more than message.timestamp.before.max.ms="
            f"{before_max_ms} behind the broker's {now_ms}",
        )


def _target_codec(header: Header, config: TopicConfig) -> Codec:
    match config.compression_type:
        case "producer":
            return Codec(header.codec)
        case "uncompressed":
            return Codec.NONE
        case name:
            return Codec[name.upper()]

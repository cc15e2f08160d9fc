"""Records as text: the JSON of `consume` and `produce`, and templates."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.protocol.record_batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from muster.client.fetch.records import ConsumerRecord

    Record = ConsumerRecord[bytes | None, bytes | None]

JSON_SHAPE: Final = """\
  {"topic": text, "partition": number, "offset": number, "timestamp": epoch ms (-1: none),
   "key": bytes or null, "value": bytes or null, "headers": [[name, bytes or null]]}
where bytes are text if valid UTF-8, and {"base64": text} otherwise."""

_JSON_FIELDS: Final = frozenset({"topic", "offset", "partition", "timestamp", "key", "value", "headers"})
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class Outgoing(NamedTuple):
    """A record to send; partition and timestamp (epoch ms) are None if not given."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


class NotARecord(ValueError):
    """The text is not a record; the message says why."""


# --- output -------------------------------------------------------------------------------------------------


def to_json(record: Record) -> bytes:
    """The record as one line of JSON."""
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [[name, _shown(value)] for name, value in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _shown(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


_FIELDS: Final[dict[str, Callable[[Record, bytes], bytes]]] = {
    "topic": lambda record, null: record.topic.encode(),
    "partition": lambda record, null: b"%d" % record.partition,
    "offset": lambda record, null: b"%d" % record.offset,
    "timestamp": lambda record, null: b"%d" % record.timestamp,
    "key": lambda record, null: null if record.key is None else record.key,
    "value": lambda record, null: null if record.value is None else record.value,
    "headers": lambda record, null: b",".join(
        name.encode() + b":" + (null if value is None else value) for name, value in record.headers
    ),
}
_ESCAPES: Final = {r"\t": "\t", r"\n": "\n", r"\0": "\0", r"\\": "\\"}
_TOKENS: Final = re.compile(r"\{(\w*(?:[!:.\[][^{}]*)?)\}|(\\[tn0\\])")
"""Also matches what Python's formats allow after a name ({value!r}), to reject it."""


def template(text: str, null: bytes) -> Callable[[Record], bytes]:
    """A function that formats a record as `text` with {key}, {value} etc. replaced. Raises NotARecord for an
    unknown field."""
    parts: list[bytes | Callable[[Record, bytes], bytes]] = []
    end = 0
    for match in _TOKENS.finditer(text):
        parts.append(os.fsencode(text[end : match.start()]))
        name, escape = match.groups()
        if escape is not None:
            parts.append(_ESCAPES[escape].encode())
        elif name in _FIELDS:
            parts.append(_FIELDS[name])
        else:
            raise NotARecord(
                f"unknown field {{{name}}}; the fields are {', '.join(f'{{{each}}}' for each in _FIELDS)}"
            )
        end = match.end()
    parts.append(os.fsencode(text[end:]) + b"\n")
    return lambda record: b"".join(each if isinstance(each, bytes) else each(record, null) for each in parts)


# --- input --------------------------------------------------------------------------------------------------


def from_json(line: bytes) -> Outgoing:
    """Parse a record as printed by `to_json`. Missing fields and a timestamp of -1 get defaults; topic and
    offset are ignored. Raises NotARecord."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotARecord(f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise NotARecord("not a JSON object")
    if not given.keys() <= _JSON_FIELDS:
        raise NotARecord(f"{min(given.keys() - _JSON_FIELDS)!r} is not a field of a record")
    headers = given.get("headers") or []
    if not isinstance(headers, list) or not all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and is_unicode(each[0])
        for each in headers
    ):
        raise NotARecord("headers take [[name, value], ...]")
    return Outgoing(
        _read(given, "key"),
        _read(given, "value"),
        tuple((name, _bytes(value, f"header {name}")) for name, value in headers) if headers else (),
        _whole(given, "partition", _INT32_MAX),
        None if given.get("timestamp") == NO_TIMESTAMP else _whole(given, "timestamp", _INT64_MAX),
    )


def is_unicode(text: str) -> bool:
    """Whether it can be encoded as UTF-8: no surrogates from undecodable bytes or from JSON."""
    return text.encode(errors="replace").decode() == text


def _read(given: dict[str, Any], name: str) -> bytes | None:
    return _bytes(given.get(name), name)


def _bytes(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
            return base64.b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise NotARecord(f"{name}: {error}") from None
    raise NotARecord(f'{name} takes text, {{"base64": text}} or null')


def _whole(given: dict[str, Any], name: str, high: int) -> int | None:
    value = given.get(name)
    if value is None or (type(value) is int and 0 <= value <= high):
        return value
    raise NotARecord(f"{name} takes a whole number, 0 to {high}")

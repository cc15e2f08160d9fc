"""Chooses the codecs built into a compiled wheel, and generates their modules.

`hatch_build.py` calls `write` before it compiles. It writes one module below `muster/protocol/generated` for
each module that declares messages. Their functions are those that `muster.protocol.compiler` creates on first
use, from the same generators; `muster.protocol.built` finds them. Neither the sources nor the pure wheel
contain these modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from muster.protocol import api
from muster.protocol.api import ApiKey
from muster.protocol.built import DECODE, ENCODE, family, fingerprint, function_name
from muster.protocol.decoder_source import decoder_source
from muster.protocol.encoder_source import encoder_source
from muster.protocol.message import RECORDS, Message
from muster.protocol.messages import coordinator_records, transaction_records
from muster.protocol.messages.coordinator_records import GROUP_METADATA_VALUE_VERSION, GroupMetadataValue
from muster.protocol.source import Scope

OLDER: Final = {
    ApiKey.PRODUCE: (7, 9, 10),
    ApiKey.FETCH: (11, 12, 16),
    ApiKey.LIST_OFFSETS: (3, 7),
    ApiKey.METADATA: (5, 6, 11),
    ApiKey.OFFSET_COMMIT: (3, 5, 8, 9),
    ApiKey.OFFSET_FETCH: (3, 4, 7, 8, 9),
    ApiKey.FIND_COORDINATOR: (1, 2, 3),
    ApiKey.JOIN_GROUP: (5, 7),
    ApiKey.HEARTBEAT: (1, 3),
    ApiKey.LEAVE_GROUP: (1, 3, 4),
    ApiKey.SYNC_GROUP: (3,),
    ApiKey.API_VERSIONS: (0, 2, 3, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 1, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 3),
    ApiKey.END_TXN: (0, 1, 3),
    ApiKey.TXN_OFFSET_COMMIT: (0, 3),
}
"""Versions that stock clients use besides an API's newest one: librdkafka 2.16, Java's 4.x, kafka-python 3,
aiokafka 0.14, kafkajs 2.2, franz-go 1.21 and sarama 1.50, with a broker that offers everything."""

OLDER_RECORDS: Final[dict[type[Message], tuple[int, ...]]] = {
    GroupMetadataValue: (GROUP_METADATA_VALUE_VERSION,)
}
"""Versions that coordinators write besides a record's newest one."""

_OF_COORDINATORS: Final = frozenset({coordinator_records.__name__, transaction_records.__name__})
"""The modules that declare coordinators' records, whatever else is declared by now."""

WRITTEN_AS_FAST: Final = frozenset({ApiKey.FETCH, ApiKey.OFFSET_FETCH, ApiKey.API_VERSIONS})
"""Responses whose encoders are left out, since mypyc's are no faster: they spend most of their time reading
attributes of many elements, at which Python is better."""


class Codec(NamedTuple):
    """A built-in codec."""

    kind: str
    """`built.DECODE` or `ENCODE`."""
    cls: type[Message]
    version: int


def codecs() -> Iterator[Codec]:
    """Every built-in codec: what a broker reads and writes in each API's newest version and in those of
    `OLDER`, what our clients write and read in the newest version of the APIs in `OLDER`, and coordinators'
    records."""
    for key in api.declared_apis():
        request, response = api.request_class(key), api.response_class(key)
        newest = request.__schema__.versions.last
        for version in (newest, *OLDER.get(key, ())):
            yield Codec(DECODE, request, version)
            if key not in WRITTEN_AS_FAST:
                yield Codec(ENCODE, response, version)
        if key in OLDER:
            yield Codec(ENCODE, request, newest)
            if key != ApiKey.FETCH:  # which clients read with views
                yield Codec(DECODE, response, newest)
    for record in RECORDS.values():
        if record.__module__ in _OF_COORDINATORS:
            for version in {record.__schema__.versions.last, *OLDER_RECORDS.get(record, ())}:
                yield Codec(DECODE, record, version)
                yield Codec(ENCODE, record, version)


def write(folder: Path) -> None:
    """Write the package of generated modules to `folder`."""
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Codecs, written by muster.protocol.building."""\n')
    families: dict[str, list[Codec]] = {}
    for codec in codecs():
        families.setdefault(codec.cls.__module__, []).append(codec)
    for declaring, of_family in families.items():
        text = module_text(declaring, of_family)
        (folder / f"{family(declaring)}.py").write_text(text, encoding="utf-8")


def module_text(declaring: str, of_family: Iterable[Codec]) -> str:
    """The source of the module with the codecs of the messages that `declaring` declares."""
    scope = Scope()
    functions = []
    for kind, cls, version in of_family:
        name = function_name(kind, cls, version)
        if kind == DECODE:
            source = decoder_source(cls, version, name=name, scope=scope)
        else:
            source = encoder_source(cls, version, name=name, scope=scope)
        functions.append(source.text())
    names = [f"{name}: {_kind(name)} = {made}" for name, made in scope.expressions.items()]
    head = _HEAD.format(declaring=declaring, package=declaring.rpartition(".")[0], family=family(declaring))
    told = f"FINGERPRINT: Final = {fingerprint(declaring)!r}\n"
    return "\n\n".join([head, "\n".join(names), told, *functions])


_HEAD: Final = '''\
"""Codecs of what {declaring} declares, written by muster.protocol.building."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, Any, Final

from {package} import {family}
from muster.protocol.elements import EncodedElements
from muster.protocol.errors import DecodeError, EncodeError, TooLargeError
from muster.protocol.source import read_tag, read_uvarint, skip_tags, string_uvarint, uuid_of, uvarint

if TYPE_CHECKING:
    from mypy_extensions import i64

new: Final[Any] = object.__new__
boolean: Final = {{False: 0, True: 1}}'''


def _kind(name: str) -> str:
    """The annotation that lets mypyc make the most of a global."""
    operation, _, codes = name.rpartition("_")
    if operation == "unpack":
        values = codes.replace("16s", "s")
        return f"Final[Callable[[bytes, i64], tuple[{', '.join(['Any'] * len(values))}]]]"
    if operation == "pack":
        return "Final[Callable[..., bytes]]"
    return "Final[Any]"

"""Refusals: a KafkaError becomes the API's response, made from the response's declaration.

The error code and its text go wherever the version has a field for them. Few responses have one code for
everything; if each partition, topic, group or key has one, it is repeated for everything that was requested,
since clients look for the answer to each thing they named, and librdkafka aborts its process if a group it
asked for is missing. `Each` says which list of the response mirrors which list of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from muster.protocol.errors import KafkaError
from muster.protocol.message import VERSION_MAX, Field, Message, Struct, Versions
from muster.protocol.types import FixedWidth

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Struct)

_IDENTITY: Final = frozenset(
    {
        "entity_name",
        "entity_type",
        "group_id",
        "group_instance_id",
        "index",
        "member_id",
        "name",
        "partition",
        "partition_index",
        "producer_id",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
    }
)
"""Fields of an entry that say what it is about: they are copied from the entry of the request."""
_WHY_BYTES_MAX: Final = 400
"""Of the text at a partition: it may be repeated fifty thousand times, for a name the client sent once."""
_PARTITION_DEPTH: Final = 2
"""Entries of entries are partitions."""

Entry = Callable[[Any, int, KafkaError], Struct]
"""Makes the refusal of one requested thing, in a version."""


class Each(NamedTuple):
    """A list of the response with an entry for each element of a list of the request."""

    answers: str
    asked: str | Callable[[Any], Iterable[Any]]
    inner: Each | None = None
    """A list in each entry, for a list in each element."""
    itself: str = ""
    """If the elements are plain values: the field of the entry that takes them."""
    entry: Entry | None = None
    """Makes the entries, if `entry` below does not."""
    versions: Versions = Versions(0, VERSION_MAX)
    fields: Mapping[str, Any] = MappingProxyType({})
    """Values of fields of the entries, where they differ from the blank ones."""


class Refusal(NamedTuple):
    """How requests of an API are refused."""

    each: tuple[Each, ...] = ()
    mirrored: tuple[str, ...] = ()
    """Fields of the response that repeat those of the request."""
    fields: Mapping[str, Any] = MappingProxyType({})
    """Values of other fields, where they differ from the blank ones."""

    def of(self, answer: type[Message], request: Any, version: int, error: KafkaError) -> Message:
        """The refusal of a whole request, in the response class `answer`."""
        values = {
            name: value for name, value in self.fields.items() if version in _field(answer, name).versions
        }
        values.update((name, getattr(request, name)) for name in self.mirrored)
        refused = entry(answer, version, error, **values)
        for each in self.each:
            if version in each.versions:
                getattr(refused, each.answers).extend(_entries(answer, each, request, version, error))
        return refused


def listing(answers: str, asked: str | Callable[[Any], Iterable[Any]], itself: str = "") -> Refusal:
    """The refusal with an entry for each element of one list."""
    return Refusal((Each(answers, asked, itself=itself),))


def partitions(
    answers: str = "topics",
    asked: str = "topics",
    in_answers: str = "partitions",
    in_asked: str = "partitions",
    itself: str = "",
    **options: Any,
) -> Refusal:
    """The refusal with an entry for each partition of each topic."""
    return Refusal((Each(answers, asked, Each(in_answers, in_asked, itself=itself)),), **options)


def entry(cls: type[S], version: int, error: KafkaError, **named: Any) -> S:
    """An entry of a response, or a whole one, with nothing but the error and the fields in `named`."""
    blank = _blank(cls, version)
    values: dict[str, Any] = {name: [] if value is _LIST else value for name, value in blank.values.items()}
    if blank.has_code:
        values["error_code"] = error.code
    if blank.has_text:
        short = not blank.is_partition or len(error.why.encode()) <= _WHY_BYTES_MAX
        values["error_message"] = error.why if short else error.code.text
    values.update(named)
    return cls(**values)


def joined(answer: M, part: Message) -> M:
    """The answer to the rest of a request, with the elements of a refused part appended. A copy, since
    answers may be given again."""
    made = copy(answer)
    for declared in type(answer).__fields__:
        ours, theirs = getattr(answer, declared.name), getattr(part, declared.name)
        if isinstance(ours, list) and isinstance(theirs, list):
            setattr(made, declared.name, ours + theirs)
    return made


def _entries(
    answer: type[Struct], each: Each, asked: Any, version: int, error: KafkaError
) -> Iterable[Struct]:
    elements = each.asked(asked) if callable(each.asked) else getattr(asked, each.asked)
    of_list = _field(answer, each.answers)
    cls = of_list.type.element  # type: ignore[union-attr]
    for element in elements or ():
        if each.entry is not None:
            yield each.entry(element, version, error)
            continue
        named = {each.itself: element} if each.itself else _identity(cls, element, version)
        made = entry(cls, version, error, **{**named, **each.fields})
        if each.inner is not None:
            setattr(made, each.inner.answers, list(_entries(cls, each.inner, element, version, error)))
        yield made


def _identity(cls: type[Struct], element: Any, version: int) -> dict[str, Any]:
    named = {}
    for each in cls.__fields__:
        if each.name in _IDENTITY and hasattr(element, each.name):
            value = getattr(element, each.name)
            # What was requested by id has no name to return, where a version has no null.
            empty = value is None and version not in each.nullable
            named[each.name] = each.type.implicit_default() if empty else value  # type: ignore[union-attr]
    return named


class _Blank(NamedTuple):
    values: dict[str, Any]
    has_code: bool
    has_text: bool
    is_partition: bool


_LIST: Final = object()


@cache
def _blank(cls: type[Struct], version: int) -> _Blank:
    """The values of fields that have no default, or one that does not suit a refusal."""
    values = {}
    for each in cls.__fields__:
        if each.default_factory is list:
            values[each.name] = _LIST
        elif each.required:
            values[each.name] = _nothing(each, version)
    names = {each.name for each in cls.__fields__ if version in each.versions or each.required}
    return _Blank(
        values,
        "error_code" in names,
        "error_message" in names,
        cls.__qualname__.count(".") >= _PARTITION_DEPTH,
    )


def _nothing(declared: Field, version: int) -> Any:
    if version in declared.nullable:
        return None
    default = declared.make_default()
    if isinstance(declared.type, FixedWidth) and version in declared.versions and type(default) is int:
        return -1
    return _LIST if default == [] else default


def _field(cls: type[Struct], name: str) -> Field:
    return next(each for each in cls.__fields__ if each.name == name)

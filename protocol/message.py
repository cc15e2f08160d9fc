"""Message declarations: one typed class per message, covering all its versions.

    @request(12, versions="0-4", flexible="4+")
    class HeartbeatRequest(Message):
        group_id: str = field(String)
        generation_id: int = field(Int32)
        member_id: str = field(String)
        group_instance_id: str | None = field(String, "3+", nullable="3+", default=None)

A declaration costs little at import: a class with `__slots__` and a tuple of `Field`s. `__init__` is
generated when the first object is created, the codec when the first object crosses the wire
(muster.protocol.compiler).

Field versions, nullability and tags follow Kafka's message definitions. Versions use Kafka's notation: "3+",
"0-4", "2", or "none".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, dataclass_transform

from muster.protocol.types import Array, FixedWidth, WireType

OWN_TAGS: Final = 10_000
"""The first tag of muster's own fields. Kafka counts from 0 in each struct, and readers skip unknown tags
(KIP-482)."""

VERSION_MAX: Final = 32767
"""The largest version that fits in an int16; the open end of "3+"."""


_REPR_BYTES_MAX: Final = 64


class Versions(NamedTuple):
    """A closed range of versions; empty when `last` is below `first`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        if self.last < self.first:
            return "none"
        if self.last == VERSION_MAX:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS: Final = Versions(0, -1)


@cache
def parse_versions(text: str) -> Versions:
    """Read Kafka's notation: "3+", "0-4", "2", "none"."""
    if text == "none":
        return NO_VERSIONS
    first, dash, last = text.partition("-")
    try:
        if dash:
            return Versions(int(first), int(last))
        if text.endswith("+"):
            return Versions(int(text[:-1]), VERSION_MAX)
        return Versions(int(text), int(text))
    except ValueError:
        raise ValueError(f'versions are written "3+", "0-4", "2" or "none", not {text!r}') from None


class _Required:
    """The type of `REQUIRED`, which marks a field without a default."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


class Field:
    """One declared field: its versions, its encoding, and its default.

    `type` is a WireType or a Struct subclass. `versions` are those that carry the field at all, `nullable`
    those in which None may be written, `tagged` those in which it lives in the tag block under `tag`.
    `ignorable` fields are left out silently in versions that lack them; any other field must hold its default
    there, or encoding fails.
    """

    __slots__ = (
        "default",
        "default_factory",
        "ignorable",
        "kafka_name",
        "name",
        "nullable",
        "secret",
        "tag",
        "tagged",
        "type",
        "versions",
    )

    def __init__(
        self,
        type: WireType | type[Struct],
        versions: Versions,
        default: object,
        default_factory: Callable[[], object] | None,
        nullable: Versions,
        tag: int | None,
        tagged: Versions,
        ignorable: bool,
        kafka_name: str | None,
        secret: bool,
    ) -> None:
        self.type = type
        self.versions = versions
        self.default = default
        self.default_factory = default_factory
        self.nullable = nullable
        self.tag = tag
        self.tagged = tagged
        self.ignorable = ignorable
        self.kafka_name = kafka_name
        self.secret = secret
        self.name = ""  # set by the metaclass, from the attribute's name

    def __repr__(self) -> str:
        return f"<Field {self.name} {self.type!r} {self.versions}>"

    @property
    def required(self) -> bool:
        """Whether the constructor requires a value."""
        return self.default is REQUIRED and self.default_factory is None

    @property
    def own(self) -> bool:
        """Whether the field is muster's own and not in Kafka's definition."""
        return self.tag is not None and self.tag >= OWN_TAGS

    def make_default(self) -> Any:
        """The value a reader sees in a version that lacks this field.

        Every version carries a required field, so only a tag block can need its default: the implicit default
        of the wire type.
        """
        if self.default_factory is not None:
            return self.default_factory()
        if self.default is not REQUIRED:
            return self.default
        return self.type() if isinstance(self.type, StructType) else self.type.implicit_default()


def field(
    type: WireType | type[Struct],
    versions: str = "0+",
    *,
    default: Any = REQUIRED,
    default_factory: Callable[[], Any] | None = None,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
    kafka_name: str | None = None,
    secret: bool = False,
) -> Any:
    """Declare one field. With a `tag`, `tagged` defaults to every version that has the field.

    `kafka_name` is the field's name in Kafka's definition if capitalising the snake_case words does not yield
    it. A `secret` field is not shown in a repr.
    """
    tagged_versions = NO_VERSIONS if tag is None else parse_versions(versions if tagged is None else tagged)
    return Field(
        type,
        parse_versions(versions),
        default,
        default_factory,
        NO_VERSIONS if nullable is None else parse_versions(nullable),
        tag,
        tagged_versions,
        ignorable,
        kafka_name,
        secret,
    )


@dataclass_transform(kw_only_default=True, eq_default=True, field_specifiers=(field,))
class StructType(type):
    """Turns `name: T = field(...)` attributes into slots, and keeps the fields, in wire order, as
    `__fields__`."""

    __fields__: tuple[Field, ...]
    __values__: Callable[[Any], Any]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> StructType:
        if any(getattr(base, "__fields__", ()) for base in bases):
            raise TypeError(f"{name}: a declared struct is not extended; Kafka's messages share no fields")
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for attribute, declared in fields.items():
            declared.name = attribute
            del namespace[attribute]
        if "__slots__" not in namespace:
            namespace["__slots__"] = tuple(fields)
        cls = super().__new__(mcs, name, bases, namespace)
        cls.__fields__ = tuple(fields.values())
        # One C call fetches all the values that equality compares.
        cls.__values__ = attrgetter(*fields) if fields else _no_values
        return cls


def _no_values(_: object) -> tuple[()]:
    return ()


class Struct(metaclass=StructType):
    """A group of fields inside a message. Mutable, compared by value, not hashable; constructors are
    keyword-only."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        cls = type(self)
        if type(other) is not cls:
            return NotImplemented
        return bool(cls.__values__(self) == cls.__values__(other))

    def __repr__(self) -> str:
        name = type(self).__qualname__.rpartition("<locals>.")[2]
        fields = type(self).__fields__
        values = (
            f"{each.name}={'...' if each.secret else _shortened(getattr(self, each.name))}" for each in fields
        )
        return f"{name}({', '.join(values)})"


def _shortened(value: object) -> str:
    """`repr`, but with long bytes shown as their length: record batches are useless in a log."""
    if isinstance(value, bytes) and len(value) > _REPR_BYTES_MAX:
        return f"<{len(value)} bytes>"
    return repr(value)


class Schema(NamedTuple):
    """What a decorator declares about a whole message."""

    kind: str
    """"request", "response" or "record"."""

    api_key: int | None
    """The API of a request or response; the record type of a coordinator record's key; else None."""

    versions: Versions
    flexible: Versions


class Message(Struct):
    """A whole request, response or record: a Struct that can be encoded and decoded on its own."""

    __slots__ = ()
    __schema__: ClassVar[Schema]


def _constructor(cls: type[Struct]) -> Callable[..., None]:
    """Generate the keyword-only `__init__` of a class; done once, when its first object is created."""
    scope: dict[str, Any] = {}
    parameters = []
    body = []
    for index, declared in enumerate(cls.__fields__):
        name = declared.name
        if declared.default_factory is not None:
            scope[f"make_{index}"] = declared.default_factory
            scope["unset"] = REQUIRED
            parameters.append(f"{name}=unset")
            body.append(f"    self.{name} = make_{index}() if {name} is unset else {name}")
        else:
            if declared.default is REQUIRED:
                parameters.append(name)
            else:
                scope[f"default_{index}"] = declared.default
                parameters.append(f"{name}=default_{index}")
            body.append(f"    self.{name} = {name}")
    signature = ", ".join(["self", "*", *parameters]) if parameters else "self"
    source = "\n".join([f"def __init__({signature}):", *(body or ["    pass"])])
    exec(compile(source, f"<{cls.__qualname__}.__init__>", "exec"), scope)
    constructor: Callable[..., None] = scope["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor


S = TypeVar("S", bound=Struct)
M = TypeVar("M", bound=Message)

REQUESTS: Final[dict[int, type[Message]]] = {}
RESPONSES: Final[dict[int, type[Message]]] = {}
RECORDS: Final[dict[str, type[Message]]] = {}
"""All declared messages, registered by the decorators: requests and responses by api key, records by class
name."""


def struct(cls: type[S]) -> type[S]:
    """Check the declaration of a nested struct."""
    _check(cls)
    return cls


def request(api_key: int, *, versions: str, flexible: str = "none") -> Callable[[type[M]], type[M]]:
    """Declare the request of an API. `flexible`: versions with compact types and tag blocks (KIP-482)."""

    def declare(cls: type[M]) -> type[M]:
        _declare(cls, Schema("request", api_key, parse_versions(versions), parse_versions(flexible)))
        _enter(REQUESTS, api_key, cls)
        return cls

    return declare


def response(api_key: int, *, versions: str, flexible: str = "none") -> Callable[[type[M]], type[M]]:
    """Declare the response of an API; see `request`."""

    def declare(cls: type[M]) -> type[M]:
        _declare(cls, Schema("response", api_key, parse_versions(versions), parse_versions(flexible)))
        _enter(RESPONSES, api_key, cls)
        return cls

    return declare


def record(
    record_type: int | None = None, *, versions: str, flexible: str = "none"
) -> Callable[[type[M]], type[M]]:
    """Declare a schema that no request carries: a coordinator record's key or value, a ConsumerProtocol blob.

    Each is preceded by an int16 that is not one of its fields: a key by its `record_type`, a value or a blob
    by the schema version. The code that stores them writes it (messages.coordinator_records, embedded).
    """

    def declare(cls: type[M]) -> type[M]:
        _declare(cls, Schema("record", record_type, parse_versions(versions), parse_versions(flexible)))
        _enter(RECORDS, cls.__name__, cls)
        return cls

    return declare


K = TypeVar("K", int, str)


def _enter(registry: dict[K, type[Message]], key: K, cls: type[Message]) -> None:
    known = registry.setdefault(key, cls)
    if known is not cls and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"{cls.__qualname__}: {known.__qualname__} is declared under {key!r} already")
    registry[key] = cls


def _declare(cls: type[Message], schema: Schema) -> None:
    if not issubclass(cls, Message):
        raise TypeError(f"{cls.__qualname__} must be a subclass of Message")
    cls.__schema__ = schema
    _check(cls)


def _check(cls: type[Struct]) -> None:
    """Refuse declarations that the codec cannot honour: at import, a mistake is easy to find."""
    tags: set[int] = set()
    for declared in cls.__fields__:
        where = f"{cls.__qualname__}.{declared.name}"
        inner = declared.type.element if isinstance(declared.type, Array) else declared.type
        if not isinstance(inner, (WireType, StructType)):
            raise TypeError(f"{where}: {inner!r} is neither a wire type nor a Struct")
        if isinstance(inner, Array):
            raise TypeError(f"{where}: Kafka has no arrays of arrays")
        if isinstance(declared.type, FixedWidth) and declared.nullable != NO_VERSIONS:
            raise TypeError(f"{where}: {declared.type} has no null")
        if declared.default is not REQUIRED and declared.default_factory is not None:
            raise TypeError(f"{where}: give a default or a default_factory, not both")
        if isinstance(declared.default, (list, Struct)):
            raise TypeError(f"{where}: a mutable default would be shared; use default_factory")
        if declared.tag is not None:
            if declared.tag in tags:
                raise TypeError(f"{where}: tag {declared.tag} is taken")
            tags.add(declared.tag)

"""The fields of a struct in one version, in wire order. Both twins of the codec are based on this."""

from __future__ import annotations

from typing import NamedTuple

from muster.protocol.message import Field, Message, Struct, StructType
from muster.protocol.types import WireType


class WireField(NamedTuple):
    """A field in one version."""

    field: Field
    nullable: bool


class Layout(NamedTuple):
    """A struct in one version of the message it belongs to."""

    cls: StructType
    version: int
    flexible: bool
    """Whether lengths are compact and a tag block ends the struct."""

    body: tuple[WireField, ...]
    """In wire order."""

    tagged: tuple[WireField, ...]
    """In ascending order of their tags."""

    absent: tuple[Field, ...]
    """The fields this version does not have."""

    def bytes_min(self) -> int:
        """The fewest bytes the struct can take."""
        total = 1 if self.flexible else 0
        for field, nullable in self.body:
            if nullable and isinstance(field.type, StructType):
                total += 1  # the marker of a null struct
            else:
                total += type_bytes_min(field.type, self.version, self.flexible)
        return total


def layout(cls: StructType, version: int, *, flexible: bool) -> Layout:
    """The layout of `cls`, a message or a struct nested in one, in a version of that message."""
    present = [field for field in cls.__fields__ if version in field.versions]
    tagged = [field for field in present if flexible and version in field.tagged]
    return Layout(
        cls,
        version,
        flexible,
        tuple(WireField(field, version in field.nullable) for field in present if field not in tagged),
        tuple(WireField(field, version in field.nullable) for field in sorted(tagged, key=_tag)),
        tuple(field for field in cls.__fields__ if version not in field.versions),
    )


def message_layout(cls: type[Message], version: int) -> Layout:
    """The layout of a whole message. Raises ValueError for a version it does not have."""
    schema = cls.__schema__
    if version not in schema.versions:
        raise ValueError(f"{cls.__qualname__} has versions {schema.versions}, not {version}")
    return layout(cls, version, flexible=version in schema.flexible)


def type_bytes_min(wire_type: WireType | type[Struct], version: int, flexible: bool) -> int:
    """The fewest bytes a value of a field's or element's type can take."""
    if isinstance(wire_type, StructType):
        return layout(wire_type, version, flexible=flexible).bytes_min()
    return wire_type.bytes_min(flexible=flexible)


def _tag(field: Field) -> int:
    assert field.tag is not None
    return field.tag

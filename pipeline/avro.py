"""Avro values as a column of rows: converts schemas to Spark types, and decodes values on the workers.

Spark decodes Avro in a module that pyspark does not include, so fastavro does it here. Values are plain, or
framed by schema registry serializers: a zero byte, the schema id in four bytes, then the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from muster.pipeline.environment import INSTALL
from muster.pipeline.errors import OptionError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Schema: TypeAlias = Any
"""A schema as JSON: a name, a list or an object; named types have their full names."""

COLUMN: Final = "data"
_OPTION: Final = "--avro-schema"
_AROUND: Final = "__around_the_value__"
"""The name of the record around a schema, and of its field: one that no schema has."""
_OUTSIDE: Final = "outside the years 1 to 9999"
"""In place of a default that is such a date or time, which Python cannot hold. Arrow takes it for none, so
that `data` is null for values that need the default."""
_FRAME_BYTES: Final = 5
_DECIMAL_DIGITS_MAX: Final = 38

_PLAIN: Final = {
    "boolean": "BooleanType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "bytes": "BinaryType",
    "fixed": "BinaryType",
    "string": "StringType",
    "enum": "StringType",
}
_LOGICAL: Final = {
    ("int", "date"): "DateType",
    ("long", "timestamp-millis"): "TimestampType",
    ("long", "timestamp-micros"): "TimestampType",
    ("long", "local-timestamp-millis"): "TimestampNTZType",
    ("long", "local-timestamp-micros"): "TimestampNTZType",
    ("bytes", "decimal"): "DecimalType",
    ("fixed", "decimal"): "DecimalType",
}
"""Logical types that Spark has, with the types they belong to; others decode as their underlying types."""
_WITHIN: Final = frozenset({"type", "items", "values"})
"""The keys of a schema's JSON, and of a field's, whose values are schemas."""
_WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
"""Unions that map to one Spark type."""
_PROMOTIONS: Final = frozenset(
    {
        *(("int", wider) for wider in ("long", "float", "double")),
        *(("long", wider) for wider in ("float", "double")),
        ("float", "double"),
        ("bytes", "string"),
        ("string", "bytes"),
    }
)
"""Types that can be read as another one."""


@dataclass(frozen=True, slots=True)
class Avro:
    """How to decode values. Picklable, because it is sent to the executors."""

    reader: Schema
    """The schema of the rows, as the only field of a record."""
    writers: Mapping[int, Schema] = field(default_factory=dict)
    """The schemas that values were written with, likewise, by id; empty if values have no frame."""

    @classmethod
    def of(cls, given: Iterable[tuple[int | None, str]]) -> Avro | None:
        """Load files, each with its schema id, or a single one without; the last defines the rows. Returns
        None for no file. Raises OptionError, also for a schema for which Spark has no type, or a field whose
        logical type changed."""
        schemas = [(number, _loaded(path)) for number, path in given]
        if not schemas:
            return None
        if len(schemas) > 1 and any(number is None for number, _ in schemas):
            raise OptionError(f"{_OPTION}: one FILE where values have no frame, or ID=FILE for each schema")
        writers = {number: schema for number, schema in schemas if number is not None}
        if writers and len(writers) < len(schemas):
            raise OptionError(f"{_OPTION}: an ID is there twice: one schema has it")
        avro = cls(schemas[-1][1], writers)
        avro.spark_type()
        for number, writer in writers.items():
            _check_logical_types(number, writer, avro.reader)
        if len(writers) > 1:
            _decode_defaults(avro.reader)
        return avro

    def spark_type(self) -> DataType:
        """The type of the rows. Raises OptionError if there is none."""
        return _spark_type(_inner(self.reader), {}, "the schema")

    def with_rows(self, records: StructType) -> StructType:
        """The type of records, with the decoded values as one more column."""
        from pyspark.sql.types import StructField, StructType

        return StructType([*records.fields, StructField(COLUMN, self.spark_type())])

    def rows(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Append to Arrow batches a column with the decoded `value`: null if that does not match its schema.
        Raises PipelineError if the framing is not as declared."""
        import pyarrow

        arrow_type = _arrow_type(self.spark_type())
        decoder = _Decoder(self, _fastavro())
        for batch in batches:
            values = batch.column(batch.schema.get_field_index("value")).to_pylist()
            rows = [None if value is None else decoder.row(value) for value in values]
            yield pyarrow.RecordBatch.from_arrays(
                [*batch.columns, _column(rows, arrow_type)], [*batch.schema.names, COLUMN]
            )


def schema_file(text: str) -> tuple[int | None, str]:
    """Reads FILE or ID=FILE."""
    number, equals, path = text.partition("=")
    return (int(number), path) if equals and number.isascii() and number.isdigit() else (None, text)


# --- schemas ------------------------------------------------------------------------------------------------


def _fastavro() -> Any:
    """Import fastavro."""
    try:
        import fastavro
    except ImportError:
        raise PipelineError(
            f"{_OPTION}: the package fastavro is not installed, here or on a worker: {INSTALL} brings it"
        ) from None
    return fastavro


def _loaded(path: str) -> Schema:
    """The schema in a file, as the only field of a record, which Avro encodes as the field alone: fastavro
    parses what is no record again for each value, and takes no default but JSON then. Raises OptionError."""
    fastavro = _fastavro()
    try:
        schema = _with_known_types(json.loads(Path(path).read_text(encoding="utf-8")))
        return fastavro.parse_schema(
            {"type": "record", "name": _AROUND, "fields": [{"name": _AROUND, "type": schema}]}
        )
    except OSError as error:
        raise OptionError(f"{_OPTION}: {path} cannot be read: {error.strerror}") from None
    except fastavro.schema.UnknownType as error:
        raise OptionError(f"{_OPTION}: {path}: there is no type {error}") from None
    except (fastavro.schema.SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise OptionError(f"{_OPTION}: {path} is no Avro schema: {error}") from None


def _inner(record: Schema) -> Schema:
    """The schema that is the only field of a record."""
    return record["fields"][0]["type"]


def _with_known_types(schema: Schema) -> Schema:
    """Remove the logical types that Spark lacks, whose decoded values would fit no Spark type, invalid ones,
    which Avro ignores, and those in unions that map to the wider of two plain types."""
    if isinstance(schema, list):
        union = [_with_known_types(each) for each in schema]
        return union if _wider(union) is None else [_kind(each) for each in union]
    if not isinstance(schema, dict):
        return schema
    known = {name: each for name, each in schema.items() if name != "logicalType" or _logical(schema)}
    for name in _WITHIN & known.keys():
        known[name] = _with_known_types(known[name])
    if isinstance(known.get("fields"), list):
        known["fields"] = [_with_known_types(each) for each in known["fields"]]
    return known


def _logical(schema: dict[str, Any]) -> str | None:
    """The name of the Spark type for its logical type; None if there is none, or the logical type is invalid:
    on a type that it does not belong to, or a decimal without a precision."""
    kind, logical = schema.get("type"), schema.get("logicalType")
    if not isinstance(kind, str) or not isinstance(logical, str):
        return None
    if logical == "decimal" and not schema.get("precision"):
        return None
    return _LOGICAL.get((kind, logical))


def _logical_of(schema: Schema) -> str | None:
    return _logical(schema) if isinstance(schema, dict) else None


def _spark_type(schema: Schema, named: dict[str, DataType | None], where: str) -> DataType:
    """`named`: the types met so far, by name, None for enclosing ones; `where`: for errors."""
    from pyspark.sql import types

    if isinstance(schema, list):
        return _spark_type(_one_of(schema, where), named, where)
    kind = _kind(schema)
    if kind in named:
        found = named[kind]
        return _no_type(f"{where} is of {kind}, which is within {kind}") if found is None else found
    if kind == "array":
        return types.ArrayType(_spark_type(schema["items"], named, f"{where}, items"))
    if kind == "map":
        return types.MapType(types.StringType(), _spark_type(schema["values"], named, f"{where}, values"))
    if kind == "record":
        name = schema["name"]
        named[name] = None
        fields = [
            types.StructField(each["name"], _spark_type(each["type"], named, f"field {name}.{each['name']}"))
            for each in schema["fields"]
        ]
        named[name] = types.StructType(fields)
        return named[name]
    if isinstance(kind, (dict, list)):
        return _spark_type(kind, named, where)
    logical = _logical_of(schema)
    if logical == "DecimalType":
        digits = schema["precision"]
        if digits > _DECIMAL_DIGITS_MAX:
            _no_type(f"{where} is a decimal of {digits} digits, of which there may be {_DECIMAL_DIGITS_MAX}")
        found = types.DecimalType(digits, schema.get("scale", 0))
    elif kind in _PLAIN:
        found = getattr(types, logical or _PLAIN[kind])()
    else:
        _no_type(f"{where} is {kind}")
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = found
    return found


def _one_of(union: list[Schema], where: str) -> Schema:
    """The one type of a union apart from null."""
    some = [each for each in union if each != "null"]
    if len(some) == 1:
        return some[0]
    names = ", ".join(map(_name, some))
    return _wider(union) or _no_type(f"{where} is a union of {names or 'null alone'}")


def _wider(union: list[Schema]) -> str | None:
    """The wider one of two numeric types; None if the union is of others, but for null."""
    return _WIDER.get(frozenset(_name(each) for each in union if each != "null"))


def _name(schema: Schema) -> str:
    return str(schema.get("name", schema.get("type")) if isinstance(schema, dict) else schema)


def _kind(schema: Schema) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _no_type(what: str) -> NoReturn:
    raise OptionError(f"{_OPTION}: {what}: Spark has no type for that")


# --- schemas of writers -------------------------------------------------------------------------------------


def _check_logical_types(number: int, writer: Schema, reader: Schema) -> None:
    """fastavro converts by the writer's logical types, and the column has the type of the reader's. Raises
    OptionError where they differ."""
    named = _named(writer), _named(reader)
    for where, written, read in _matching(_inner(writer), _inner(reader), named, "the schema", set()):
        if _logical_of(written) != _logical_of(read):
            raise OptionError(
                f"{_OPTION}: {where} is {_told(written)} in schema {number} and {_told(read)} in the last:"
                " give it the same logicalType in both files, or remove it from both"
            )


def _matching(
    writer: Schema,
    reader: Schema,
    named: tuple[dict[str, Schema], dict[str, Schema]],
    where: str,
    seen: set[tuple[str, str]],
) -> Iterator[tuple[str, Schema, Schema]]:
    """The simple types that values are written as and read as, and where. `named`: both's named types;
    `seen`: the pairs of records so far, which are not compared again."""
    writer, reader = _resolved(writer, named[0]), _resolved(reader, named[1])
    if isinstance(writer, list) or isinstance(reader, list):
        for one in writer if isinstance(writer, list) else [writer]:
            for other in reader if isinstance(reader, list) else [reader]:
                yield from _matching(one, other, named, where, seen)
        return
    kinds = _kind(writer), _kind(reader)
    if kinds == ("array", "array"):
        yield from _matching(writer["items"], reader["items"], named, f"{where}, items", seen)
    elif kinds == ("map", "map"):
        yield from _matching(writer["values"], reader["values"], named, f"{where}, values", seen)
    elif kinds == ("record", "record"):
        if not _is_same(writer, reader):
            return  # as of another record of a union
        pair = writer["name"], reader["name"]
        if pair in seen:
            return
        seen.add(pair)
        written = {each["name"]: each["type"] for each in writer["fields"]}
        for read in reader["fields"]:
            its = f"field {reader['name']}.{read['name']}"
            for name in (read["name"], *read.get("aliases", ())):
                if name in written:
                    yield from _matching(written[name], read["type"], named, its, seen)
    elif kinds[0] == kinds[1] or kinds in _PROMOTIONS:
        yield where, writer, reader


def _is_same(written: Mapping[str, Any], read: Mapping[str, Any]) -> bool:
    """Whether a record is that of the reader, by name or alias, whatever its namespace."""
    names = {written["name"], _without_namespace(written["name"])}
    return not names.isdisjoint([_without_namespace(read["name"]), *read.get("aliases", ())])


def _without_namespace(name: str) -> str:
    return name.rpartition(".")[2]


def _named(schema: Schema) -> dict[str, Schema]:
    """The named types in a schema, by name."""
    found: dict[str, Schema] = {}
    remaining = [schema]
    while remaining:
        each = remaining.pop()
        if isinstance(each, list):
            remaining += each
        elif isinstance(each, dict):
            if each["type"] in ("record", "enum", "fixed"):
                found[each["name"]] = each
            remaining += [its["type"] for its in each.get("fields", ())]
            remaining += [each[name] for name in _WITHIN & each.keys()]
    return found


def _resolved(schema: Schema, named: Mapping[str, Schema]) -> Schema:
    """The definition of a type given by its name, or within another object."""
    kind = _kind(schema)
    if isinstance(kind, (dict, list)) and kind is not schema:
        return _resolved(kind, named)
    return named.get(kind, schema) if isinstance(kind, str) else schema


def _told(schema: Schema) -> str:
    return f"{_kind(schema)} ({schema['logicalType']})" if _logical_of(schema) else str(_kind(schema))


# --- defaults -----------------------------------------------------------------------------------------------


def _decode_defaults(reader: Schema) -> None:
    """Replace the defaults of fields, which fastavro puts into rows as they are in JSON, by the values that
    they stand for. Raises OptionError."""
    named = _named(reader)
    decoded: list[tuple[dict[str, Any], Any]] = []
    for record in named.values():
        for each in record.get("fields", ()):
            if "default" not in each:
                continue
            try:
                decoded.append((each, _default(each["type"], each["default"], named)))
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                raise OptionError(
                    f"{_OPTION}: field {record['name']}.{each['name']}: its default is no value of its type:"
                    f" {json.dumps(each['default'])}"
                ) from None
    for each, value in decoded:
        each["default"] = value


def _default(schema: Schema, given: Any, named: Mapping[str, Schema]) -> Any:
    """What a default in JSON stands for."""
    schema = _resolved(schema, named)
    if given is None:
        return None
    if isinstance(schema, list):
        return _default(_one_of(schema, "a default"), given, named)
    kind = _kind(schema)
    if kind == "record":
        fields = {each["name"]: each for each in schema["fields"]}
        return {
            name: _default(each["type"], given[name] if name in given else each["default"], named)
            for name, each in fields.items()
        }
    if kind == "array":
        return [_default(schema["items"], each, named) for each in given]
    if kind == "map":
        return {name: _default(schema["values"], each, named) for name, each in given.items()}
    if kind in ("float", "double"):
        return float(given)  # also of "NaN"
    if kind in ("bytes", "fixed"):
        given = given.encode("iso-8859-1")
    if not _is_plain(kind, given, schema):
        raise ValueError
    if _logical_of(schema) is None:
        return given
    try:
        return _fastavro().read.LOGICAL_READERS[f"{kind}-{schema['logicalType']}"](given, schema)
    except (ValueError, OverflowError):
        return _OUTSIDE


def _is_plain(kind: str, given: Any, schema: Schema) -> bool:
    """Whether it is a value of a type that is no record, array, map, union or float."""
    match kind:
        case "int" | "long":
            most = 1 << (31 if kind == "int" else 63)
            return isinstance(given, int) and not isinstance(given, bool) and -most <= given < most
        case "boolean":
            return isinstance(given, bool)
        case "string":
            return isinstance(given, str)
        case "enum":
            return bool(given in schema["symbols"])
        case "fixed":
            return bool(len(given) == schema["size"])
    return True


# --- values -------------------------------------------------------------------------------------------------


class _Decoder:
    """Decodes the values of a task."""

    def __init__(self, avro: Avro, fastavro: Any) -> None:
        self._avro = avro
        self._read = fastavro.schemaless_reader
        self._cannot_be_resolved = fastavro.read.SchemaResolutionError

    def row(self, value: bytes) -> Any:
        """Decode a value; None if it is invalid. Raises PipelineError."""
        frame = value[:_FRAME_BYTES]
        framed = len(frame) == _FRAME_BYTES and frame[0] == 0
        number = int.from_bytes(frame[1:], "big")
        writers, reader = self._avro.writers, self._avro.reader
        if writers and framed:
            if number not in writers:
                raise PipelineError(f"a value was written with schema {number}: {_OPTION} {number}=FILE")
            return self._decoded(value[_FRAME_BYTES:], writers[number])
        row = self._decoded(value, reader)
        if writers and row is not None:
            raise PipelineError(f"a value has no id of a schema before it: {_OPTION} takes just FILE then")
        if framed and row is None and self._decoded(value[_FRAME_BYTES:], reader) is not None:
            raise PipelineError(
                f"a value has the id of a registry's schema before it: {_OPTION} takes ID=FILE then, here"
                f" {number}=FILE"
            )
        return row

    def _decoded(self, value: bytes, writer: Schema) -> Any:
        """Decode all of these bytes; None if they are not exactly one value."""
        reader = self._avro.reader
        stream = BytesIO(value)
        try:
            row = self._read(stream, writer, None if writer is reader else reader)[_AROUND]
        except self._cannot_be_resolved as error:
            raise PipelineError(
                f"{_OPTION}: the last schema cannot read what others wrote: {error}"
            ) from None
        except Exception:  # Invalid bytes can raise anything, from EOFError to OverflowError.
            return None
        return row if stream.tell() == len(value) else None


def _arrow_type(of: DataType) -> Any:
    """The Arrow type that Spark uses for it."""
    import pyarrow as pa
    from pyspark.sql import types

    if isinstance(of, types.StructType):
        return pa.struct([(each.name, _arrow_type(each.dataType)) for each in of.fields])
    if isinstance(of, types.ArrayType):
        return pa.list_(pa.field("element", _arrow_type(of.elementType)))
    if isinstance(of, types.MapType):
        return pa.map_(_arrow_type(of.keyType), _arrow_type(of.valueType))
    if isinstance(of, types.DecimalType):
        return pa.decimal128(of.precision, of.scale)
    return {
        "BooleanType": pa.bool_(),
        "IntegerType": pa.int32(),
        "LongType": pa.int64(),
        "FloatType": pa.float32(),
        "DoubleType": pa.float64(),
        "BinaryType": pa.binary(),
        "StringType": pa.string(),
        "DateType": pa.date32(),
        "TimestampType": pa.timestamp("us", tz="UTC"),
        "TimestampNTZType": pa.timestamp("us"),
    }[type(of).__name__]


def _column(rows: list[Any], arrow_type: Any) -> Any:
    """The rows as an Arrow array; null for a row that does not fit the type, such as a decimal with too many
    digits."""
    import pyarrow

    try:
        return pyarrow.array(rows, arrow_type)
    except pyarrow.ArrowException:
        return pyarrow.array([each if _fits(each, arrow_type) else None for each in rows], arrow_type)


def _fits(row: Any, arrow_type: Any) -> bool:
    import pyarrow

    try:
        pyarrow.array([row], arrow_type)
    except pyarrow.ArrowException:
        return False
    return True

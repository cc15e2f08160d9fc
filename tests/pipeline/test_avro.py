"""Avro values as rows: types, frames of schema registries, and values that do not match their schema."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow
import pytest

from muster.pipeline.avro import Avro, schema_file
from muster.pipeline.errors import OptionError, PipelineError

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "price", "type": "int", "default": 7}]}


def encoded(row: Any, schema: Any = ORDER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def framed(number: int, row: Any, schema: Any = ORDER) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + encoded(row, schema)


def avro(folder: Path, *schemas: Any, **by_id: Any) -> Avro:
    """An Avro for these schemas; `of_7=...` is the schema with id 7."""
    given: list[tuple[int | None, str]] = []
    for number, schema in [*((None, each) for each in schemas), *by_id.items()]:
        path = folder / f"{len(given)}.avsc"
        path.write_text(json.dumps(schema))
        given.append((number and int(number.removeprefix("of_")), str(path)))
    made = Avro.of(given)
    assert made is not None
    return pickle.loads(pickle.dumps(made))  # as a worker receives it


def rows(how: Avro, *values: bytes | None) -> list[Any]:
    batch = pyarrow.RecordBatch.from_pydict(
        {"key": pyarrow.array([None] * len(values), pyarrow.binary()), "value": pyarrow.array(values)}
    )
    (found,) = how.rows([batch])
    assert found.schema.names == ["key", "value", "data"]
    assert found.column(1) == batch.column(1)
    return list(found.column(2).to_pylist())


def test_values_become_rows(tmp_path: Path) -> None:
    how = avro(tmp_path, ORDER)
    assert how.spark_type().simpleString() == "struct<id:bigint,name:string>"
    assert rows(how, encoded({"id": 1, "name": "x"}), None, encoded({"id": -(2**63), "name": None})) == [
        {"id": 1, "name": "x"},
        None,
        {"id": -(2**63), "name": None},
    ]


def test_every_type(tmp_path: Path) -> None:
    def field(name: str, of: Any) -> dict[str, Any]:
        return {"name": name, "type": of}

    schema = {
        "type": "record",
        "name": "All",
        "namespace": "shop",
        "fields": [
            field("yes", "boolean"),
            field("small", "int"),
            field("wide", ["int", "null", "long"]),
            field("real", ["float", "double"]),
            field("raw", "bytes"),
            field("four", {"type": "fixed", "name": "Four", "size": 4}),
            field("kind", {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}),
            field("again", ["null", "Kind"]),
            field("numbers", {"type": "array", "items": "int"}),
            field("counts", {"type": "map", "values": {"type": "array", "items": "long"}}),
            field("inner", {"type": "record", "name": "Inner", "fields": [field("of", "string")]}),
            field("day", {"type": "int", "logicalType": "date"}),
            field("at", {"type": "long", "logicalType": "timestamp-millis"}),
            field("here", {"type": "long", "logicalType": "local-timestamp-micros"}),
            field("price", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
            field("id", {"type": "string", "logicalType": "uuid"}),
            field("clock", {"type": "int", "logicalType": "time-millis"}),
        ],
    }
    how = avro(tmp_path, schema)
    types = {each.name: each.dataType.simpleString() for each in how.spark_type().fields}
    assert types == {
        "yes": "boolean",
        "small": "int",
        "wide": "bigint",
        "real": "double",
        "raw": "binary",
        "four": "binary",
        "kind": "string",
        "again": "string",
        "numbers": "array<int>",
        "counts": "map<string,array<bigint>>",
        "inner": "struct<of:string>",
        "day": "date",
        "at": "timestamp",
        "here": "timestamp_ntz",
        "price": "decimal(6,2)",
        "id": "string",
        "clock": "int",
    }
    row = {
        "yes": True,
        "small": -5,
        "wide": 2**40,
        "real": 0.5,
        "raw": b"\0\xff",
        "four": b"abcd",
        "kind": "OLD",
        "again": None,
        "numbers": [1, 2],
        "counts": {"a": [1], "b": []},
        "inner": {"of": "é"},
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC),
        "here": datetime(2026, 1, 31, 12, 0, 0, 123_456),
        "price": Decimal("-1234.50"),
        "id": "7c3f5f0e-6c5e-4a37-a59d-8d2c9b9d7f11",
        "clock": 86_399_999,
    }
    written = json.loads(json.dumps(schema))
    for name in ("id", "clock"):
        (its,) = (each for each in written["fields"] if each["name"] == name)
        del its["type"]["logicalType"]
    (found,) = rows(how, encoded(row, written))
    assert found | {"counts": dict(found["counts"])} == row


@pytest.mark.parametrize(
    ("schema", "value", "spark_type"),
    [
        ({"type": "string", "logicalType": "date"}, "2026-01-31", "string"),
        ({"type": "string", "logicalType": "timestamp-millis"}, "2026-01-31T00:00:00Z", "string"),
        ({"type": "string", "logicalType": "decimal", "precision": 6, "scale": 2}, "12.50", "string"),
        ({"type": "int", "logicalType": "timestamp-millis"}, 1_767_225_600, "int"),
        ({"type": "int", "logicalType": "local-timestamp-micros"}, 7, "int"),
        ({"type": "long", "logicalType": "date"}, 20_454, "bigint"),
        ({"type": "long", "logicalType": "decimal", "precision": 6, "scale": 2}, 1_250, "bigint"),
        ({"type": "bytes", "logicalType": "decimal"}, b"\x04\xe2", "binary"),
        ({"type": "fixed", "name": "Two", "size": 2, "logicalType": "decimal"}, b"\x04\xe2", "binary"),
        ({"type": "int", "logicalType": ["date"]}, 7, "int"),
    ],
    ids=str,
)
def test_invalid_logical_types_are_ignored(
    tmp_path: Path, schema: dict[str, Any], value: Any, spark_type: str
) -> None:
    record = {**ORDER, "fields": [*ORDER["fields"], {"name": "a", "type": schema}]}
    plain = {name: each for name, each in schema.items() if name != "logicalType"}
    written = {**ORDER, "fields": [*ORDER["fields"], {"name": "a", "type": plain}]}
    how = avro(tmp_path, record)
    assert how.spark_type()["a"].dataType.simpleString() == spark_type
    row = {"id": 1, "name": "x", "a": value}
    assert rows(how, encoded(row, written)) == [row]


def test_what_is_no_value_of_the_schema_is_null(tmp_path: Path) -> None:
    value = encoded({"id": 1, "name": "x"})
    bad = [
        b"",
        value[:-1],
        value + b"\0",
        b"\xff" * 20,
        b"no avro",
        encoded({"id": 1, "name": "x"})[:2] + b"\x09",
    ]
    assert rows(avro(tmp_path, ORDER), *bad, value) == [None] * len(bad) + [{"id": 1, "name": "x"}]
    digits = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    more = {**digits, "precision": 9}
    values = [encoded(Decimal("1.5"), more), encoded(Decimal("12345.5"), more)]
    assert rows(avro(tmp_path, digits), *values) == [Decimal("1.5"), None]


def test_values_of_several_schemas_of_a_registry(tmp_path: Path) -> None:
    how = avro(tmp_path, of_7=ORDER, of_300=NEWER)
    assert how.spark_type().simpleString() == "struct<id:bigint,name:string,price:int>"
    old, new = framed(7, {"id": 1, "name": "x"}), framed(300, {"id": 2, "name": None, "price": 9}, NEWER)
    assert rows(how, old, new, None, b"\0\0\0\0\x07", b"") == [
        {"id": 1, "name": "x", "price": 7},
        {"id": 2, "name": None, "price": 9},
        None,
        None,
        None,
    ]


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}


def with_field(schema: Any, **more: Any) -> dict[str, Any]:
    return {**ORDER, "fields": [*ORDER["fields"], {"name": "a", "type": schema, **more}]}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("long", MILLIS, r"a is long in schema 7 and long \(timestamp-millis\) in the last"),
        (MILLIS, "long", r"a is long \(timestamp-millis\) in schema 7 and long in the last"),
        (MILLIS, LOCAL, r"a is long \(timestamp-millis\) in .* and long \(local-timestamp-millis\) in"),
        ("int", MILLIS, "a is int in schema 7 and long"),
        (DATE, "long", r"a is int \(date\) in schema 7 and long in"),
        (DATE, ["int", "long"], r"a is int \(date\) in schema 7 and int in"),
        (["null", "int", MILLIS], ["null", MILLIS], "a is int in schema 7 and long"),
        (MONEY, "bytes", r"a is bytes \(decimal\) in schema 7 and bytes in"),
        ("bytes", MONEY, r"a is bytes in schema 7 and bytes \(decimal\) in"),
        (["null", "string", "long"], ["null", MILLIS], "a is long in schema 7"),
        (
            {"type": "array", "items": {"type": "map", "values": "int"}},
            {"type": "array", "items": {"type": "map", "values": DATE}},
            r"a, items, values is int in schema 7 and int \(date\) in",
        ),
    ],
    ids=str,
)
def test_a_field_keeps_its_logical_type(tmp_path: Path, old: Any, new: Any, told: str) -> None:
    """Its values would be null, or other times."""
    advice = "give it the same logicalType in both files, or remove it from both"
    with pytest.raises(OptionError, match=f"--avro-schema: field Order.{told}.*: {advice}"):
        avro(tmp_path, of_7=with_field(old), of_8=with_field(new))


def test_a_field_of_another_record_or_name_keeps_its_logical_type(tmp_path: Path) -> None:
    def point(at: Any, name: str = "geo.Point") -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": "at", "type": at}]}

    def both(at: Any, name: str = "a", **more: Any) -> dict[str, Any]:
        named = {"name": name, "type": ["null", "geo.Point"], "default": None, **more}
        return {**ORDER, "fields": [{"name": "first", "type": point(at)}, named]}

    old = both("long", "then")
    old["fields"][0]["name"] = "was"
    with pytest.raises(OptionError, match=r"field geo.Point.at is long in schema 7 and long \(timestamp"):
        avro(tmp_path, of_7=old, of_8={**both(MILLIS, aliases=["then"])})
    other = with_field(["null", point("long", "Other"), point(MILLIS)])
    how = avro(tmp_path, of_7=other, of_8=with_field(["null", point(MILLIS)]))
    at = datetime(2026, 1, 31, tzinfo=UTC)
    assert rows(how, framed(7, {"id": 1, "name": "x", "a": {"at": at}}, other))[0]["a"] == {"at": at}


def test_a_record_that_many_fields_name_is_compared_once(tmp_path: Path) -> None:
    """Each level names the one below it three times: along all paths, it would never be done."""

    def nested(at: Any) -> Any:
        inner: Any = at
        for level in range(40):
            types = [inner] if level == 0 else [inner, *[f"T{level - 1}"] * 2]
            fields = [{"name": f"f{place}", "type": each} for place, each in enumerate(types)]
            inner = {"type": "record", "name": f"T{level}", "fields": fields}
        return inner

    avro(tmp_path, of_7=nested(MILLIS), of_8=nested({**MILLIS, "logicalType": "timestamp-micros"}))
    with pytest.raises(
        OptionError, match=r"field T0.f0 is long in schema 7 and long \(timestamp-millis\) in"
    ):
        avro(tmp_path, of_7=nested("long"), of_8=nested(MILLIS))


@pytest.mark.parametrize(
    ("old", "new", "written", "value"),
    [
        (MILLIS, {**MILLIS, "logicalType": "timestamp-micros"}, MILLIS, datetime(2026, 1, 31, tzinfo=UTC)),
        (
            ["null", "string", MILLIS],
            ["null", MILLIS],
            ["null", "string", MILLIS],
            datetime(2026, 1, 31, tzinfo=UTC),
        ),
        (["int", MILLIS], "long", ["int", "long"], 2**40),
        ("int", "long", "int", 5),
        ({"type": "string", "logicalType": "uuid"}, "string", "string", "x"),
    ],
    ids=str,
)
def test_fields_whose_types_agree(tmp_path: Path, old: Any, new: Any, written: Any, value: Any) -> None:
    how = avro(tmp_path, of_7=with_field(old), of_8=with_field(new))
    row = {"id": 1, "name": "x", "a": value}
    assert rows(how, framed(7, row, with_field(written)))[0] == row


@pytest.mark.parametrize("union", [["null", "int", MILLIS], ["null", DATE, "long"]], ids=str)
def test_a_union_of_numbers_has_no_logical_type(tmp_path: Path, union: list[Any]) -> None:
    how = avro(tmp_path, with_field(union))
    assert how.spark_type()["a"].dataType.simpleString() == "bigint"
    written = with_field(["null", "int", "long"])
    values = [5, 2**40, None]
    found = rows(how, *(encoded({"id": 1, "name": "x", "a": each}, written) for each in values))
    assert [each["a"] for each in found] == values


INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "x", "type": MILLIS, "default": 1_767_225_600_000}, {"name": "y", "type": "int"}],
}
TWO = {"type": "fixed", "name": "Two", "size": 2}
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schema", "default", "expected"),
    [
        (MILLIS, 1_767_225_600_000, NEW_YEAR),
        ({**MILLIS, "logicalType": "timestamp-micros"}, 1_767_225_600_000_000, NEW_YEAR),
        (LOCAL, 1_767_225_600_000, datetime(2026, 1, 1)),
        (DATE, 20_454, date(2026, 1, 1)),
        (MONEY, "\u0004\u00e2", Decimal("12.50")),
        ({**MONEY, **TWO, "precision": 4}, "\u0004\u00e2", Decimal("12.50")),
        ("bytes", "\u00ff", b"\xff"),
        (TWO, "\u0000\u00ff", b"\0\xff"),
        (["null", MILLIS], None, None),
        ([MILLIS, "null"], 1_767_225_600_000, NEW_YEAR),
        (["int", "long"], 5, 5),
        ("double", "Infinity", float("inf")),
        ("string", "\u00ff", "ÿ"),
        (INNER, {"y": 1}, {"x": NEW_YEAR, "y": 1}),
        ({"type": "array", "items": MONEY}, ["\u0004\u00e2"], [Decimal("12.50")]),
        ({"type": "map", "values": ["null", DATE]}, {"a": 20_454}, {"a": date(2026, 1, 1)}),
    ],
    ids=str,
)
def test_defaults_are_values_of_their_types(tmp_path: Path, schema: Any, default: Any, expected: Any) -> None:
    newer = with_field(schema, default=default)
    how = avro(tmp_path, of_7=ORDER, of_8=newer)
    row = {"id": 1, "name": "x"}
    old, new = framed(7, row), framed(8, {**row, "a": expected}, newer)
    found = [each["a"] for each in rows(how, old, new, old)]
    assert [dict(each) if isinstance(expected, dict) else each for each in found] == [expected] * 3


def test_a_default_of_a_type_that_has_a_name(tmp_path: Path) -> None:
    """The type is defined in another field, and its own field has a default as well."""
    newer = with_field(["null", INNER], default=None)
    newer["fields"].append({"name": "b", "type": "Inner", "default": {"y": 2}})
    (found,) = rows(avro(tmp_path, of_7=ORDER, of_8=newer), framed(7, {"id": 1, "name": "x"}))
    assert found == {"id": 1, "name": "x", "a": None, "b": {"x": NEW_YEAR, "y": 2}}


@pytest.mark.parametrize(
    ("schema_of", "value_of"),
    [
        (lambda schema: {"type": "array", "items": schema}, lambda row: [row]),
        (lambda schema: {"type": "map", "values": schema}, lambda row: {"k": row}),
        (lambda schema: ["null", schema], lambda row: row),
        (lambda schema: [{"type": "array", "items": ["null", schema]}, "null"], lambda row: [None, row]),
    ],
    ids=["array", "map", "union", "union of an array"],
)
@pytest.mark.parametrize(
    ("schema", "default", "meant"),
    [
        ("int", 7, 7),
        (MILLIS, 1_767_225_600_000, NEW_YEAR),
        (MONEY, "\u0004\u00e2", Decimal("12.50")),
        ("bytes", "\u00ff", b"\xff"),
    ],
    ids=str,
)
def test_a_default_of_a_record_that_is_not_the_top(
    tmp_path: Path,
    schema_of: Callable[[Any], Any],
    value_of: Callable[[Any], Any],
    schema: Any,
    default: Any,
    meant: Any,
) -> None:
    old, new = schema_of(ORDER), schema_of(with_field(schema, default=default))
    row = {"id": 1, "name": "x"}
    values = framed(7, value_of(row), old), framed(8, value_of({**row, "a": meant}), new)
    of_default, of_value = rows(avro(tmp_path, of_7=old, of_8=new), *values)
    assert of_default == of_value is not None


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        (INNER, {}),
        (INNER, {"x": "s", "y": 1}),
        (["null", MONEY], 5),
        ("bytes", "\u0100"),
        ("long", 2**70),
        ({"type": "array", "items": "int"}, ["x"]),
        ({"type": "fixed", "name": "Two", "size": 2}, "a"),
        ({"type": "enum", "name": "Letter", "symbols": ["A"]}, "B"),
    ],
    ids=str,
)
def test_a_default_that_is_no_value_of_its_type(tmp_path: Path, schema: Any, default: Any) -> None:
    newer = with_field(schema, default=default)
    with pytest.raises(OptionError, match=r"--avro-schema: field Order\.a: its default is no value of its"):
        avro(tmp_path, of_7=ORDER, of_8=newer)
    avro(tmp_path, newer)  # which has no use for it


@pytest.mark.parametrize(
    ("schema", "default", "value"),
    [
        ({**MILLIS, "logicalType": "timestamp-micros"}, 2**63 - 1, NEW_YEAR),
        (MILLIS, 2**62, NEW_YEAR),
        (MILLIS, 253_402_300_800_000, NEW_YEAR),
        (LOCAL, -(2**63), datetime(2026, 1, 1)),
        (DATE, 2**31 - 1, date(2026, 1, 1)),
        (DATE, -(2**31), date(2026, 1, 1)),
        (MONEY, "\u007f\u00ff\u00ff\u00ff", Decimal("12.50")),
        (INNER, {"x": 2**62, "y": 1}, {"x": NEW_YEAR, "y": 2}),
        ({"type": "array", "items": MILLIS}, [0, 2**62], [NEW_YEAR]),
    ],
    ids=str,
)
def test_a_default_that_cannot_be_held_makes_null_only_what_takes_it(
    tmp_path: Path, schema: Any, default: Any, value: Any
) -> None:
    """Such as the greatest time, for never."""
    newer = with_field(schema, default=default)
    row = {"id": 1, "name": "x"}
    found = rows(
        avro(tmp_path, of_7=ORDER, of_8=newer), framed(7, row), framed(8, {**row, "a": value}, newer)
    )
    assert found == [None, {**row, "a": value}]


def test_a_default_that_looks_like_a_union(tmp_path: Path) -> None:
    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
    how = avro(tmp_path, with_field({"type": "array", "items": point}, default=[{"x": 1}]))
    assert how.spark_type()["a"].dataType.simpleString() == "array<struct<x:int>>"


@pytest.mark.parametrize("names", [("int", "long"), ("float", "double")], ids=str)
def test_fields_that_are_called_like_types(tmp_path: Path, names: tuple[str, ...]) -> None:
    fields = [{"name": each, "type": "string"} for each in names]
    how = avro(tmp_path, with_field({"type": "record", "name": "Inner", "fields": fields}))
    expected = ",".join(f"{each}:string" for each in names)
    assert how.spark_type()["a"].dataType.simpleString() == f"struct<{expected}>"


def test_frames_that_are_not_as_they_were_said_to_be(tmp_path: Path) -> None:
    """Nulls would hide the cause: the command line is wrong, or a schema is new."""
    with pytest.raises(PipelineError, match=r"has the id .* before it: --avro-schema takes .* 7=FILE"):
        rows(avro(tmp_path, ORDER), framed(7, {"id": 1, "name": "x"}))
    with pytest.raises(PipelineError, match=r"written with schema 8: --avro-schema 8=FILE"):
        rows(avro(tmp_path, of_7=ORDER), framed(8, {"id": 1, "name": "x"}))
    with pytest.raises(PipelineError, match=r"no id of a schema before it: --avro-schema takes just FILE"):
        rows(avro(tmp_path, of_7=ORDER), encoded({"id": 1, "name": "x"}))
    strict = {**ORDER, "fields": [*ORDER["fields"], {"name": "more", "type": "int"}]}
    with pytest.raises(
        PipelineError, match=r"the last schema cannot read what others wrote: No default value for .*more"
    ):
        rows(avro(tmp_path, of_7=ORDER, of_8=strict), framed(7, {"id": 1, "name": "x"}))


RECURSIVE = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (
            {**ORDER, "fields": [{"name": "a", "type": ["int", "string"]}]},
            "field Order.a is a union of int, string",
        ),
        ({**ORDER, "fields": [{"name": "a", "type": "null"}]}, "field Order.a is null"),
        (["null"], "the schema is a union of null alone"),
        (RECURSIVE, "field Tree.left is of Tree, which is within Tree"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2},
            "a decimal of 40 digits, of which there may be 38",
        ),
        ({**ORDER, "fields": [{"name": "a", "type": "text"}]}, "0.avsc: there is no type text"),
        ({"type": "record", "fields": []}, "0.avsc is no Avro schema: .*name"),
        (5, "0.avsc is no Avro schema"),
    ],
)
def test_schemas_that_will_not_do(tmp_path: Path, schema: Any, told: str) -> None:
    with pytest.raises(OptionError, match=f"--avro-schema: .*{told}"):
        avro(tmp_path, schema)


def test_files_that_will_not_do(tmp_path: Path) -> None:
    assert Avro.of([]) is None
    with pytest.raises(OptionError, match=r"nothing\.avsc cannot be read: No such file"):
        Avro.of([(None, f"{tmp_path}/nothing.avsc")])
    (tmp_path / "no.avsc").write_text("{")
    with pytest.raises(OptionError, match=r"no\.avsc is no Avro schema: Expecting"):
        Avro.of([(None, f"{tmp_path}/no.avsc")])
    with pytest.raises(OptionError, match="one FILE where values have no frame, or ID=FILE for each schema"):
        avro(tmp_path, ORDER, of_7=NEWER)
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    with pytest.raises(OptionError, match="an ID is there twice"):
        Avro.of([(7, f"{tmp_path}/order.avsc")] * 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.avsc", (None, "a.avsc")),
        ("7=a=b.avsc", (7, "a=b.avsc")),
        ("a=b.avsc", (None, "a=b.avsc")),
        ("=a", (None, "=a")),
    ],
)
def test_ids_before_files(text: str, expected: tuple[int | None, str]) -> None:
    assert schema_file(text) == expected

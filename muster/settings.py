"""How a setting is declared: once, with its type, unit, default, bounds and meaning.

The broker process, topics, running brokers and clients have settings of their own. What the help,
DescribeConfigs, the page of settings and refusals say about one comes from its `Setting`. A dataclass
declares its fields with `setting`; `settings_of` returns what was declared.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, Self

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class Type(Enum):
    """Types of values, numbered as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    """Text elements, a tuple in Python."""
    CLASS = 8
    """A Java class; `choices` are all that there are."""
    PASSWORD = 9
    """Text that is never shown."""


class Scope(Enum):
    """Where a setting can be altered: nowhere, since it is read at the start; on one broker at a time; or on
    one or all."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Setting(NamedTuple):
    """What is declared about one setting."""

    type: Type
    default: Any
    """None: it is unset."""
    meaning: str
    """Begins in lower case and has no full stop at the end."""
    name: str = ""
    """With dots, as in Kafka."""
    unit: str | None = None
    section: str = ""
    """Under which heading it is listed."""
    low: float | None = None
    high: float | None = None
    also: float | None = None
    """One value outside the bounds that is allowed too."""
    choices: tuple[Any, ...] = ()
    pattern: str | None = None
    """What a text matches, or each element of a list; a list may also be `*` alone."""
    holds: Callable[[str], bool] | None = None
    """What else must be true of a text, beside its pattern."""
    shape: str | None = None
    """What is allowed, in words, where it does not follow from the rest."""
    length_max: int | None = None
    """Of text that may not be empty."""
    optional: bool = False
    """None is allowed."""
    scope: Scope = Scope.READ_ONLY
    default_from: str | None = None
    """The broker's setting that gives a topic's its default."""
    kafka: bool = True
    """Kafka has it under this name."""
    by_listener: bool = False
    """It can be set for one listener alone (`listener.name.NAME.`)."""
    served: bool = True
    """False where muster has no such mechanism: the value is kept and reported, and changes nothing."""

    @property
    def field(self) -> str:
        """Its name as an attribute or a keyword argument: `group_max_size` for `group.max.size`."""
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Its value is never shown."""
        return self.type is Type.PASSWORD

    @property
    def dynamic(self) -> bool:
        """Whether it can be altered while the broker runs."""
        return self.scope is not Scope.READ_ONLY

    @property
    def kind(self) -> Any:
        """The Python type of its values."""
        return _KINDS.get(self.type, str)

    @property
    def numeric(self) -> bool:
        return self.kind in (int, float)

    @property
    def noun(self) -> str:
        """What a number is called."""
        return "a number" if self.type is Type.DOUBLE else "a whole number"

    @property
    def documentation(self) -> str:
        """Sentences for readers who do not see the rest of the declaration."""
        unit = "" if self.unit is None else f" Unit: {self.unit}."
        served = "" if self.served else f" {_NOT_SERVED}"
        return f"{self.meaning[0].upper()}{self.meaning[1:]}.{unit}{served}"

    @property
    def allowed(self) -> str:
        """The values allowed, in words: the end of "it takes"."""
        if self.shape is not None:
            return self.shape
        if self.kind is bool:
            return "true or false"
        if self.numeric:
            also = "" if self.also is None else f", or {self.also}"
            return f"{self.noun} from {self.low} to {self.high}{also}"
        if self.choices:
            listed = self.kind is tuple
            return f"a list of {' and '.join(self.choices)}" if listed else either(self.choices)
        return "text" if self.length_max is None else f"text of 1 to {self.length_max} characters"

    def allows(self, value: object) -> bool:
        """Whether a value of the right Python type is allowed. None never is: see `optional`."""
        if isinstance(value, bool) or self.kind is bool:
            return isinstance(value, bool) and self.kind is bool
        if self.choices and self.kind is not tuple:
            return value in self.choices
        if isinstance(value, int | float):
            if not self.numeric or (isinstance(value, float) and self.kind is int):
                return False
            assert self.low is not None
            assert self.high is not None
            return self.low <= value <= self.high or value == self.also
        if isinstance(value, tuple):
            return self.kind is tuple and self._allows_list(value)
        if not isinstance(value, str) or self.kind is not str:
            return False
        if self.type is Type.CLASS:
            return False  # there is none
        if self.pattern is not None:
            matches = re.fullmatch(self.pattern, value) is not None
            return matches and (self.holds is None or self.holds(value))
        return self.length_max is None or 0 < len(value) <= self.length_max

    def _allows_list(self, parts: tuple[str, ...]) -> bool:
        if self.choices:
            return set(parts) <= set(self.choices)
        if self.pattern is None or parts == ("*",):
            return True
        return all(re.fullmatch(self.pattern, part) for part in parts)

    def read(self, text: str) -> Any:
        """The value that Kafka reads in `text`; None when it is not allowed."""
        text = text.strip()
        value: Any = text
        if self.kind is bool:
            value = {"true": True, "false": False}.get(text.lower())
        elif self.kind is tuple:
            parts = [part.strip() for part in text.split(",")] if text else []
            value = tuple(dict.fromkeys(parts) if self.choices else parts)
        elif self.numeric:
            # Python's own parsing would take 1_000, and digits of every script.
            if re.fullmatch(_DOUBLE if self.kind is float else _INTEGER, text) is None:
                return None
            value = self.kind(text)
        return value if self.allows(value) else None

    def named(self, name: str, section: str = "") -> Self:
        """The setting with its name, and the unit that the name ends in."""
        unit = self.unit or _UNITS.get(name.rpartition(".")[2])
        return self._replace(name=name, unit=unit, section=self.section or section)


_KINDS: Final = {
    Type.BOOLEAN: bool,
    Type.SHORT: int,
    Type.INT: int,
    Type.LONG: int,
    Type.DOUBLE: float,
    Type.LIST: tuple,
}
_TYPES: Final = {bool: Type.BOOLEAN, int: Type.INT, float: Type.DOUBLE, tuple: Type.LIST}
_RANGES: Final[dict[Type, tuple[float, float]]] = {
    Type.SHORT: (-INT16_MAX - 1, INT16_MAX),
    Type.INT: (-INT32_MAX - 1, INT32_MAX),
    Type.LONG: (-INT64_MAX - 1, INT64_MAX),
    Type.DOUBLE: (-sys.float_info.max, sys.float_info.max),
}
_UNITS: Final = {each: each for each in ("ms", "seconds", "minutes", "hours", "bytes")}
_NOT_SERVED: Final = "Kept and reported here, but without effect: muster has no such mechanism."
_INTEGER: Final = r"[+-]?[0-9]{1,20}"
_DOUBLE: Final = r"[+-]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?"


def declare(
    default: Any,
    meaning: str,
    type: Type | None = None,
    low: float | None = None,
    high: float | None = None,
    **rest: Any,
) -> Setting:
    """A setting without its name; `rest` are fields of `Setting`. Its type follows from the default (text for
    None), and bounds that are not given from the type."""
    if type is None:
        type = _TYPES.get(default.__class__, Type.STRING)
        if type is Type.INT and (high or 0) > INT32_MAX:
            type = Type.LONG
    lowest, highest = _RANGES.get(type, (None, None))
    low, high = lowest if low is None else low, highest if high is None else high
    return Setting(type, default, meaning, low=low, high=high, **rest)


def setting(default: Any, meaning: str, *args: Any, **rest: Any) -> Any:
    """A field of a dataclass that declares a setting; see `declare`."""
    return setting_field(declare(default, meaning, *args, **rest))


def setting_field(declared: Setting) -> Any:
    """A field of a dataclass for a setting that is declared already."""
    return field(default=declared.default, repr=not declared.sensitive, metadata={"setting": declared})


def either(choices: Iterable[str]) -> str:
    """`a, b or c`; `a or b,c` where a choice has a comma of its own."""
    *others, last = choices
    if any("," in each for each in (*others, last)):
        return " or ".join((*others, last))
    return f"{', '.join(others)} or {last}" if others else last


@cache
def settings_of(dataclass: Any) -> Mapping[str, Setting]:
    """The settings of a dataclass by the names of its fields, in order. A section goes on until the next
    begins."""
    found: dict[str, Setting] = {}
    section = ""
    for each in fields(dataclass):
        if (declared := each.metadata.get("setting")) is not None:
            found[each.name] = declared.named(each.name.replace("_", "."), section)
            section = found[each.name].section
    return found


def text_of(value: Any) -> str:
    """A value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _double_text(value: float) -> str:
    """As Java writes it: 0.5, 1.0E7."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or "0") + len(whole) - 1 - (len(whole + fraction) - len(digits))
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:].rstrip('0') or '0'}E{power}"

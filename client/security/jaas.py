"""Reads sasl.jaas.config, a login module and its options, with the escapes and comments of Java's
StreamTokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_BETWEEN: Final = re.compile(r"(?:\s|//[^\r\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_TOKEN: Final = re.compile(r"""(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([=;])|([^\s=;"']+))""")
_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))")
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Login module and options of `Module required name="value" ...;`. Raises ValueError."""
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[1][1].lower() not in ("required", "requisite", "sufficient", "optional"):
        raise ValueError("sasl.jaas.config: it takes a login module, `required`, options, and a semicolon")
    if tokens[-1] != ("mark", ";"):
        raise ValueError("sasl.jaas.config: there is no semicolon at its end")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    while rest:
        if len(rest) < 3 or rest[1] != ("mark", "=") or rest[0][0] != "word" or rest[2][0] == "mark":
            raise ValueError('sasl.jaas.config: options are written name="value"')
        options[rest[0][1]] = rest[2][1]
        rest = rest[3:]
    return tokens[0][1], options


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while (at := _end_of_blank(text, at)) < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError("sasl.jaas.config: a quote is not closed")
        at = found.end()
        double, single, mark, word = found.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            yield "text", _ESCAPE.sub(_character, quoted)
        elif mark is not None:
            yield "mark", mark
        else:
            yield "word", word


def _end_of_blank(text: str, at: int) -> int:
    """Where the white space and comments from here on end."""
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _character(escape: re.Match[str]) -> str:
    octal, other = escape.groups()
    return chr(int(octal, 8)) if octal is not None else _ESCAPED.get(other, other)

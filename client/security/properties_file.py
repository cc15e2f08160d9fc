"""The format of Java's properties files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """The properties in a file, read as in Java except for UTF-8, which may begin with a byte order mark:
    comments, escapes, continued lines. A later property of the same name wins. Raises ValueError for an
    invalid escape."""
    found: dict[str, str] = {}
    for line in _lines(text.removeprefix("\ufeff")):
        raw_name, raw_value = _split(line)
        name = _unescaped(raw_name, "the name of a property")
        found[name] = _unescaped(raw_value, f"the value of {name[:40]!r}")
    return found


def _lines(text: str) -> Iterator[str]:
    """Logical lines: continued lines are joined; comments and blank lines are left out."""
    whole = ""
    for each in re.split(r"\r\n|\r|\n", text):  # str.splitlines knows more ends than Java
        line = each.lstrip(" \t\f")
        if not whole and (not line or line[0] in "#!"):
            continue
        whole += line
        backslashes = len(whole) - len(whole.rstrip("\\"))
        if backslashes % 2:
            whole = whole[:-1]
            continue
        yield whole
        whole = ""
    if whole:
        yield whole


def _split(line: str) -> tuple[str, str]:
    """A name ends at the first separator that is not escaped: =, : or white space."""
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:at], rest


def _unescaped(text: str, what: str) -> str:
    """`what` it is, for an error: the text may be a password."""

    def character(found: re.Match[str]) -> str:
        digits, other = found.groups()
        if digits is not None:
            return chr(int(digits, 16))
        if other == "u":
            raise ValueError(rf"malformed \u escape in {what}; it takes four digits")
        return _ESCAPES.get(other, other)

    units = re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", character, text)
    try:  # a character beyond \uffff is written as two
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ValueError(
            rf"incomplete character in {what}; one beyond \uffff takes two \u escapes, as in \ud83d\ude00"
        ) from None

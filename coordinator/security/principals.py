"""Maps a client certificate to a principal: applies the mapping rules to its subject, as Java writes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import re2

if TYPE_CHECKING:
    from cryptography.x509 import NameAttribute

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 names; others are written as their OID, with their value in hexadecimal."""
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\\0]|^[ \r]+|[ \r]+\Z')

_RULES: Final = re.compile(r",\s*(?=RULE:|DEFAULT\s*(?:,|$))")
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])+)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_GROUP: Final = re.compile(r"\$(\d)")


def subject_of(certificate: bytes) -> str:
    """The subject of a DER certificate, as Java's `X500Principal.getName` writes it (RFC 2253): the last part
    first. Needs the package cryptography."""
    from cryptography.x509 import load_der_x509_certificate

    parts = load_der_x509_certificate(certificate).subject.rdns
    return ",".join("+".join(map(_written, part)) for part in reversed(parts))


def _written(attribute: NameAttribute[str | bytes]) -> str:
    number = attribute.oid.dotted_string
    keyword = _KEYWORDS.get(number)
    if keyword is None:
        return f"{number}=#{_der_of(attribute).hex()}"
    return f"{keyword}={_ESCAPED.sub(_escaped, str(attribute.value))}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(r"\00" if each == "\0" else rf"\{each}" for each in found[0])


def _der_of(attribute: NameAttribute[str | bytes]) -> bytes:
    """The value with its tag: what follows the OID within Name, RelativeDistinguishedName and attribute."""
    from cryptography.x509 import Name

    encoded = Name([attribute]).public_bytes()
    for _ in range(3):
        encoded = _content(encoded)
    return encoded[len(encoded) - len(_behind(encoded)) :]


def _content(encoded: bytes) -> bytes:
    return encoded[_header(encoded) :]


def _behind(encoded: bytes) -> bytes:
    return encoded[_header(encoded) + encoded[1] :]  # an OID is shorter than 128 bytes


def _header(encoded: bytes) -> int:
    return 2 + (encoded[1] & 0x7F if encoded[1] & 0x80 else 0)


class _Rule(NamedTuple):
    pattern: re2._Regexp[str]
    replacement: str
    case: str


class PrincipalRules:
    """The rules of ssl.principal.mapping.rules, in order."""

    def __init__(self, rules: list[_Rule | None]) -> None:
        self._rules = rules

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the rules. Raises ValueError, which says what is wrong with which rule."""
        return cls([cls._read(each.strip()) for each in _RULES.split(text)])

    @staticmethod
    def _read(text: str) -> _Rule | None:
        if text == "DEFAULT":
            return None
        found = _RULE.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no rule; a rule is DEFAULT or RULE:PATTERN/REPLACEMENT/, with L or U behind"
            )
        pattern, replacement, case = found.groups()
        options = re2.Options()
        options.log_errors = False
        try:
            compiled = re2.compile(pattern.replace("\\/", "/"), options)
        except re2.error as error:
            raise ValueError(f"the pattern of {text!r} cannot be used: {error}") from None
        groups = [int(group) for group in _GROUP.findall(replacement)]
        if groups and max(groups) > compiled.groups:
            raise ValueError(f"{text!r} takes ${max(groups)}, and its pattern has {compiled.groups} groups")
        return _Rule(compiled, replacement.replace("\\/", "/"), case)

    def user_of(self, subject: str) -> str | None:
        """The user's name by the first rule whose pattern matches the whole subject; None if none does."""
        for rule in self._rules:
            if rule is None:
                return subject
            found = rule.pattern.fullmatch(subject)
            if found is not None:
                name = _GROUP.sub(lambda group: found[int(group[1])] or "", rule.replacement)  # noqa: B023
                return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)
        return None

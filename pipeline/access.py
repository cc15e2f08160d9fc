"""How a job authenticates to brokers: TLS and SASL options, named as in Kafka's Java client with the prefix
`kafka.`, as in Spark's own connector; and, for commands, a client.properties file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Final

from muster.client.security.properties import NAMES, ClientProperties, client_properties
from muster.client.security.properties_file import parse
from muster.client.security.security import Security
from muster.client.security.settings import SecurityOptions
from muster.pipeline.errors import OptionError

PREFIX: Final = "kafka."
SUMMARY: Final = "kafka.security.protocol, kafka.ssl.*, kafka.sasl.*"
"""Stands for all their names in messages."""

_KNOWN: Final = {f"{PREFIX}{name}".lower(): name for name in NAMES}
_FAMILIES: Final = tuple(f"{PREFIX}{family}." for family in ("security", "ssl", "sasl", "https"))
_NAME: Final = re.compile(
    rf"(?<![\w.])(?:{'|'.join(sorted(map(re.escape, NAMES), key=len, reverse=True))})(?!\w|\.\w)"
)
_CLOSE: Final = 0.85
_KEPT_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials for brokers, and how to verify brokers. Sent to executors as the given properties; the repr
    hides them."""

    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Access:
        """Read the options of a reader or writer, case-insensitively; ignore others. Raises OptionError,
        which names the option at fault."""
        lower = {name.lower(): value for name, value in options.items()}
        access = cls(tuple((name, str(lower[key])) for key, name in _KNOWN.items() if key in lower))
        access._checked()
        return access

    @classmethod
    def from_file(cls, path: str) -> Access:
        """Read a client.properties file; ignore other properties. Raises OptionError."""
        try:
            given = parse(Path(path).read_text(encoding="utf-8"))
            client_properties(given).settings()
        except OSError as error:
            raise OptionError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        except UnicodeDecodeError:
            raise OptionError(f"{path}: not a file of properties (it is no UTF-8 text)") from None
        except ValueError as error:
            raise OptionError(f"{path}: {error}") from None
        return cls(tuple((name, given[name]) for name in NAMES if name in given))

    @property
    def options(self) -> dict[str, str]:
        """As options of a reader or writer."""
        return {f"{PREFIX}{name}": value for name, value in self.properties}

    @property
    def security(self) -> Security | None:
        """Settings for a `Cluster`; None for PLAINTEXT. Raises OptionError, also on executors: they may lack
        the files."""
        return self._checked().security

    @property
    def client_options(self) -> SecurityOptions:
        """Keyword arguments for a Producer or an Admin."""
        return self._checked().properties.security

    def in_options(self, text: str) -> str:
        """Replace setting names in a client's message with option names. Without options, the text is
        unchanged."""
        if not self.properties:
            return text
        return _in_options(self._checked().properties.in_properties(text))

    def _checked(self) -> _Read:
        try:
            return _read(self.properties)
        except ValueError as error:
            said = _in_options(str(error))
            raise OptionError(f"option {said}" if said.startswith(PREFIX) else said) from None


NOTHING_TO_SHOW: Final = Access()
"""For brokers that accept everyone."""


def with_access(
    options: Iterable[tuple[str, str]], path: str | None, told_by: str = "--command-config"
) -> tuple[tuple[str, str], ...]:
    """A command's source options, then those of its client.properties file; the former take precedence.
    `told_by` is the argument or variable that names the file. Raises OptionError."""
    try:
        of_file = {} if not path else Access.from_file(path).options
    except OptionError as error:
        raise OptionError(f"{told_by}: {error}") from None
    return tuple({**of_file, **dict(options)}.items())


def is_about_access(name: str) -> bool:
    """Whether this is one of the TLS and SASL options."""
    return name.lower() in _KNOWN


def check_family(name: str) -> None:
    """Raises OptionError for a TLS or SASL option that does not exist."""
    lower = name.lower()
    if lower in _KNOWN or not lower.startswith(_FAMILIES):
        return
    near = get_close_matches(lower, _KNOWN, 1, _CLOSE)
    names = ", ".join(sorted(PREFIX + each for each in NAMES))
    hint = f"did you mean {PREFIX}{_KNOWN[near[0]]}?" if near else f"it takes {names}"
    raise OptionError(f"option {name}: the format muster has none of that name; {hint}")


def _in_options(text: str) -> str:
    return _NAME.sub(lambda found: PREFIX + found[0], text)


@dataclass(frozen=True, slots=True, repr=False)
class _Read:
    properties: ClientProperties
    security: Security | None


@lru_cache(_KEPT_MAX)
def _read(properties: tuple[tuple[str, str], ...]) -> _Read:
    """Cached per process, so that its tasks share tokens and read files once. Raises ValueError."""
    found = client_properties(dict(properties))
    return _Read(found, found.settings().security)

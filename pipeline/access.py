"""How a job is let in by brokers: the options of TLS and SASL, by the names of Kafka's Java client with
`kafka.` in front, as Spark's own connector takes them; and a client.properties file, for commands.
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
"""In place of all their names."""

_KNOWN: Final = {f"{PREFIX}{name}".lower(): name for name in NAMES}
_FAMILIES: Final = tuple(f"{PREFIX}{family}." for family in ("security", "ssl", "sasl", "https"))
_NAME: Final = re.compile(
    rf"(?<![\w.])(?:{'|'.join(sorted(map(re.escape, NAMES), key=len, reverse=True))})(?!\w|\.\w)"
)
_CLOSE: Final = 0.85
_KEPT_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Access:
    """What brokers are shown, and what they have to show. It travels to executors as the properties that were
    given; a repr does not show them."""

    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Access:
        """From the options of a reader or writer, in any case; others are passed over. Raises OptionError
        that names the option at fault."""
        lower = {name.lower(): value for name, value in options.items()}
        access = cls(tuple((name, str(lower[key])) for key, name in _KNOWN.items() if key in lower))
        access._checked()
        return access

    @classmethod
    def from_file(cls, path: str) -> Access:
        """From a file of client.properties, of which the rest is passed over. Raises OptionError."""
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
        """For a `Cluster`; None for PLAINTEXT. Raises OptionError, on executors too: they may not have the
        files."""
        return self._checked().security

    @property
    def client_options(self) -> SecurityOptions:
        """For a Producer or an Admin."""
        return self._checked().properties.security

    def in_options(self, text: str) -> str:
        """What a client says of its settings, said of options. Text without options stays as it is."""
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
"""For brokers that let everybody in."""


def with_access(options: Iterable[tuple[str, str]], path: str | None) -> tuple[tuple[str, str], ...]:
    """A command's options of the source, and behind them those of its file of client.properties. Raises
    OptionError."""
    of_file = {} if not path else Access.from_file(path).options
    return tuple({**of_file, **dict(options)}.items())


def is_about_access(name: str) -> bool:
    """Whether an option is one of these."""
    return name.lower() in _KNOWN


def check_family(name: str) -> None:
    """Raises OptionError for an option of TLS or SASL that there is not."""
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
    """One for all tasks of a process: tokens are kept with it, and files read once. Raises ValueError."""
    found = client_properties(dict(properties))
    return _Read(found, found.settings().security)

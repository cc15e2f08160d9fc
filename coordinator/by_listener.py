"""Settings for one listener alone: Kafka's `listener.name.NAME.ssl.client.auth`, which overrides
`ssl.client.auth` on that listener.

It is the option `--listener-name-external-ssl-client-auth`, the variable
`MUSTER_LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUTH`, and in Python
`listener_name={"external": {"ssl_client_auth": "required"}}`. As in Kafka, the listener's name is
case-insensitive; in options and variables, `.`, `-` and `_` are equivalent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from muster.settings import Setting

PREFIX: Final = "listener_name_"

_TLS: Final = ("SSL", "SASL_SSL")
_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")


def normalised(name: str) -> str:
    """A name in the form used for comparison."""
    return re.sub("[.-]", "_", name).lower()


def prefixed(listener: str, name: str) -> str:
    """The name of the field `name` for `listener` alone."""
    return f"{PREFIX}{normalised(listener)}_{name}"


def split(given: str, listeners: Sequence[str], settings: Mapping[str, Setting]) -> tuple[str, str]:
    """The listener and the field, among these, that a prefixed name refers to. Raises LookupError, whose text
    says why there is none."""
    rest = normalised(given).removeprefix(PREFIX)
    named = [each for each in listeners if rest.startswith(normalised(each) + "_")]
    if not named:
        there = f"--listeners has {', '.join(listeners)}" if listeners else "--listeners names none"
        raise LookupError(f"no such listener; {there}")
    fields = {each: rest[len(each) + 1 :] for each in named}
    for listener, field in fields.items():
        if field in settings:
            check_name(field, settings)
            return listener, field
    check_name(fields[max(named, key=len)], settings)
    raise AssertionError


def check_name(field: str, settings: Mapping[str, Setting]) -> None:
    """Raises LookupError unless the field can be set for one listener alone."""
    able = [each.field for each in settings.values() if each.by_listener]
    if field in able:
        return
    if field in settings:
        raise LookupError(f"{settings[field].name} cannot be set for one listener alone, only for all")
    from difflib import get_close_matches  # rarely wanted

    close = get_close_matches(field, able, 1)
    meant = f"did you mean {settings[close[0]].name}?" if close else f"there are {_list(able, settings)}"
    raise LookupError(f"{field.replace('_', '.')} has no effect on a listener in muster; {meant}")


def _list(fields: Iterable[str], settings: Mapping[str, Setting]) -> str:
    return ", ".join(settings[each].name for each in fields)


def protocols_with(field: str) -> Sequence[str]:
    """The security protocols of listeners on which the field has an effect."""
    if field == "ssl_principal_mapping_rules":
        return ("SSL",)
    return _TLS if field.startswith("ssl_") else _SASL

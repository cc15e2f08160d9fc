"""What the settings of consumers and producers have in common."""

from __future__ import annotations

from collections.abc import Iterable


def check_known(client: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for what is no setting of `client`, with the one that may have been meant."""
    known = set(known)
    for name in given:
        if name not in known:
            from difflib import get_close_matches  # seldom needed, and long to import

            close = get_close_matches(name.replace(".", "_"), known, 1)
            perhaps = f"; perhaps {close[0]}" if close else ""
            raise TypeError(f"{client} has no setting {name!r}{perhaps}")

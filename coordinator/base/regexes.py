"""User-supplied regular expressions, in RE2's syntax as in Kafka: matching takes time linear in the text,
whatever the expression."""

from __future__ import annotations

from typing import Any


class BadRegex(ValueError):
    """An invalid expression; the text says what is wrong."""


def compiled(expression: str) -> Any:
    """The compiled expression, which has `fullmatch`. Raises BadRegex."""
    import re2  # most brokers never need it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        raise BadRegex(why.decode(errors="replace") if isinstance(why, bytes) else why) from None

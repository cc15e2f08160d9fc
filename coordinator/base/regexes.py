"""Regular expressions that others write, in RE2's syntax as Kafka has it: to match takes time in proportion
to the text, whatever the expression."""

from __future__ import annotations

from typing import Any


class BadRegex(ValueError):
    """Says what is wrong with an expression."""


def compiled(expression: str) -> Any:
    """The expression, with `fullmatch`. Raises BadRegex."""
    import re2  # most brokers never see one

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        raise BadRegex(why.decode(errors="replace") if isinstance(why, bytes) else why) from None

"""Calls of assignors, which may be the user's: what they raise is told to the user as theirs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from muster.client.assignors import Assignor
from muster.client.errors import ClientError


class AssignorFailed(ClientError):
    """An assignor raised an exception (the cause)."""


@contextmanager
def calling(assignor: Assignor, group_id: str) -> Iterator[None]:
    """Raises AssignorFailed for what the assignor raises."""
    try:
        yield
    except Exception as error:
        raise AssignorFailed(
            f"group {group_id}: the assignor {assignor.name!r} failed: {type(error).__name__}: {error}"
        ) from error

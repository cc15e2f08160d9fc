"""Clients with principals, without SASL: brokers of this process take a client's id for its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.session import Session

PREFIX: Final = "as "
"""Client ids that begin with it name a user; who connects with another is anonymous."""


def named_by_client_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have whoever connects as `as alice` be User:alice."""
    context_of = Session._context_of

    def named(session: Session, api_version: int, client_id: str) -> RequestContext:
        made = context_of(session, api_version, client_id)
        if client_id.startswith(PREFIX):
            principal = f"User:{client_id.removeprefix(PREFIX)}"
            if made.principal != principal:
                made = session._context = replace(made, principal=principal)
        return made

    monkeypatch.setattr(Session, "_context_of", named)

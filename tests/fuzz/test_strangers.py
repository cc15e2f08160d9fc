"""A few thousand of the inputs a stranger can send; `make fuzz-strangers` sends ten million."""

from __future__ import annotations

from tests.fuzz.strangers import _work


def test_nobody_is_let_in_and_nothing_raised() -> None:
    tally = _work(7, 0, 3_000, 1)
    assert sum(tally.values()) == 3_000
    # Exchanges must reach the last token, or the test would show little.
    names = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    assert {f"{name} refused, {token} token" for name in names for token in ("first", "last")} <= set(tally)
    assert {"TLS ended", "TLS goes on"} <= set(tally)

"""What is held back, noted and suppressed around signals, without Spark."""

from __future__ import annotations

import logging
import signal

import pytest

from muster.pipeline.signals import held_signals, lost_jvm_is_no_news, noted_signals


def _log(module: str, text: str) -> None:
    """Log as py4j does: under the name root, from this module."""
    logging.getLogger().handle(
        logging.LogRecord("root", logging.ERROR, f"{module}.py", 1, text, args=None, exc_info=None)
    )


def test_a_lost_jvm_is_told_until_a_signal_comes(caplog: pytest.LogCaptureFixture) -> None:
    with noted_signals() as came, lost_jvm_is_no_news(since=lambda: bool(came)):
        _log("java_gateway", "before")
        signal.raise_signal(signal.SIGTERM)
        _log("java_gateway", "since")
        _log("commits", "of another")
    _log("java_gateway", "behind")
    assert caplog.messages == ["before", "of another", "behind"]
    assert came == [signal.SIGTERM]


def test_a_held_signal_takes_effect_behind_the_block() -> None:
    steps: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: steps.append("signal"))
    try:
        with held_signals():
            signal.raise_signal(signal.SIGTERM)
            steps.append("block")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["block", "signal"]

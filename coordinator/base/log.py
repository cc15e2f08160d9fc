"""Logging by structlog: readable on a terminal, one JSON object a line otherwise.

structlog costs some 50 ms to import, a sixth of what a broker may take to start, so it is imported for the
first line that is logged, or by `warm_up` once the broker is ready. Levels below the configured one never get
that far.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any, Final, TextIO, cast

from muster.coordinator.base.lines import LineWriter

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


_STANDARD_LOGGERS: Final = ("muster", "asyncio")


class _Output:
    """Where lines go; until `configure` is called only warnings and errors are written (muster as a
    library)."""

    level: int = LEVELS["warning"]
    format: str = "auto"
    stream: TextIO | None = None  # None: whatever sys.stderr is when the first line is written
    writer: LineWriter | None = None  # writes for the stream, if that is done in the background
    logger: Any = None


def configure(
    level: str, format: str = "auto", stream: TextIO | None = None, *, background: bool = False
) -> None:
    """Set the least severe level written and its shape: `human`, `json`, or `auto` by whether it is a
    terminal. What muster and asyncio log through the standard library goes the same way. `background`: a
    thread writes the lines, so that nobody waits for who reads them, until `end_background`."""
    _Output.level, _Output.format, _Output.stream, _Output.logger = LEVELS[level], format, stream, None
    if _Output.writer is not None:
        _Output.writer.close()
    _Output.writer = _background_writer(stream or sys.stderr) if background else None
    for name in _STANDARD_LOGGERS:
        standard = logging.getLogger(name)
        standard.handlers, standard.propagate = [_Forward()], False
        standard.setLevel(_Output.level)


def set_level(level: str) -> None:
    """Set the least severe level written, for the whole process, as it runs. The standard library's loggers
    follow if they are muster's to set (`configure`)."""
    _Output.level, _Output.logger = LEVELS[level], None
    for name in _STANDARD_LOGGERS:
        standard = logging.getLogger(name)
        if any(isinstance(handler, _Forward) for handler in standard.handlers):
            standard.setLevel(_Output.level)


def level() -> str:
    """The least severe level written."""
    return next(name for name, number in LEVELS.items() if number == _Output.level)


def _background_writer(stream: TextIO) -> LineWriter | None:
    try:
        return LineWriter(stream.fileno(), _lines_lost)
    except (OSError, ValueError):  # no file behind it, so nothing to wait for
        return None


def _lines_lost(count: int) -> None:
    Logger(part="log").error("log lines lost, nobody was reading", lines=count)


def drain(timeout_s: float) -> None:
    """Wait until the lines that a thread writes are written, or for `timeout_s`."""
    if _Output.writer is not None:
        _Output.writer.drain(timeout_s)


def end_background(timeout_s: float) -> None:
    """`drain`, and have no thread write any more: its file descriptor may soon be another file's."""
    drain(timeout_s)
    if _Output.writer is not None:
        _Output.writer.close()
        _Output.writer = _Output.logger = None


def warm_up() -> None:
    """Pay the import now; for a thread beside the event loop, so that no first line delays a request.

    Only in a process that is ours alone: structlog imports rich and pygments where they are installed, 5 MB
    and as long again, for tracebacks that we do not print. So rich is hidden, from all, meanwhile.
    """
    hidden: dict[str, Any] = {} if "rich" in sys.modules else {"rich": None}
    sys.modules.update(hidden)
    try:
        _structlog()
    finally:
        for name in hidden:
            del sys.modules[name]


class Logger:
    """Writes events with fields: `log.info("group rebalanced", group="orders", cause="member joined")`."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: object) -> None:
        self._fields = fields

    def bind(self, **fields: object) -> Logger:
        """A logger that adds these fields to each of its lines."""
        return Logger(**{**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """`exc_info=error` adds the traceback."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        if LEVELS[level] >= _Output.level:
            # Nobody may be there any more to read it (a closed pipe): that is no reason to fail what is
            # logged.
            with suppress(OSError, ValueError):
                getattr(_structlog(), level)(event, **self._fields, **fields)


class _Forward(logging.Handler):
    """Standard library records as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        names = [name for name, least in LEVELS.items() if record.levelno >= least]
        fields: dict[str, object] = {"logger": record.name}
        if record.exc_info is not None:
            fields["exc_info"] = record.exc_info
        Logger(**fields)._write(names[-1] if names else "debug", record.getMessage(), {})


def _structlog() -> Any:
    # Another thread may set the level meanwhile, which makes the logger anew.
    logger = _Output.logger
    if logger is None:
        import structlog

        stream = _Output.stream or sys.stderr
        human = _Output.format == "human" or (_Output.format == "auto" and stream.isatty())
        processors: list[Any] = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if human else "iso", utc=not human),
        ]
        if human:
            processors.append(
                structlog.dev.ConsoleRenderer(
                    colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=28
                )
            )
        else:
            processors += [
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(default=str),
            ]
        logger = _Output.logger = structlog.wrap_logger(
            structlog.WriteLogger(cast(TextIO, _Output.writer or stream)),
            processors=processors,
            wrapper_class=structlog.make_filtering_bound_logger(_Output.level),
        )
    return logger

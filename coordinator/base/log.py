"""Logging with structlog: readable on a terminal, otherwise one JSON object per line.

structlog takes some 50 ms to import, a sixth of what a broker may take to start, so it is imported when the
first line is logged, or by `warm_up` once the broker is ready. Lines below the configured level never get
that far.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from io import StringIO
from typing import Any, Final, TextIO, cast

from muster.coordinator.base.lines import LineWriter

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


_STANDARD_LOGGERS: Final = ("muster", "asyncio")
_SHOWN_AS_THEY_ARE: Final = ("event", "logger", "exception", "stack")
"""Fields that are text on a terminal. Other strings are quoted where they need it."""


class _Output:
    """Where lines go. Until `configure` is called, only warnings and errors are written (muster as a
    library)."""

    level: int = LEVELS["warning"]
    format: str = "auto"
    stream: TextIO | None = None  # None: whatever sys.stderr is when a line is written
    writer: LineWriter | None = None  # writes to the stream, if in the background
    logger: tuple[object, Any] | None = None  # what it writes to, and structlog's logger


def configure(
    level: str, format: str = "auto", stream: TextIO | None = None, *, background: bool = False
) -> None:
    """Set the lowest level written and the format: `human`, `json`, or `auto`, which depends on whether the
    stream is a terminal. What muster and asyncio log through the standard library goes the same way.
    `background`: until `end_background` a thread writes the lines, so that nobody waits for their reader."""
    _Output.level, _Output.format, _Output.stream, _Output.logger = LEVELS[level], format, stream, None
    if _Output.writer is not None:
        _Output.writer.close()
    _Output.writer = _background_writer(stream or sys.stderr) if background else None
    for name in _STANDARD_LOGGERS:
        standard = logging.getLogger(name)
        standard.handlers, standard.propagate = [_Forward()], False
        standard.setLevel(_Output.level)


def set_level(level: str) -> None:
    """Set the lowest level written, for the whole running process. The standard library's loggers follow if
    muster has set them up (`configure`)."""
    _Output.level, _Output.logger = LEVELS[level], None
    for name in _STANDARD_LOGGERS:
        standard = logging.getLogger(name)
        if any(isinstance(handler, _Forward) for handler in standard.handlers):
            standard.setLevel(_Output.level)


def level() -> str:
    """The lowest level written."""
    return next(name for name, number in LEVELS.items() if number == _Output.level)


def _background_writer(stream: TextIO) -> LineWriter | None:
    try:
        return LineWriter(stream.fileno(), _lines_lost)
    except (OSError, ValueError):  # no file behind it, so nothing can block
        return None


def _lines_lost(count: int) -> None:
    Logger(part="log").error("log lines lost, they could not be written", lines=count)


def drain(timeout_s: float) -> None:
    """Wait until the background thread has written all lines, at most `timeout_s`."""
    if _Output.writer is not None:
        _Output.writer.drain(timeout_s)


def end_background(timeout_s: float) -> None:
    """`drain`, then stop the background thread: its file descriptor may soon be another file's."""
    drain(timeout_s)
    if _Output.writer is not None:
        _Output.writer.close()
        _Output.writer = _Output.logger = None


def warm_up() -> None:
    """Import structlog now, on a thread beside the event loop, so that the first line delays no request.

    Only in a process of our own: where rich and pygments are installed, structlog imports them (5 MB, and as
    long again) for tracebacks that we do not print. So rich is hidden from the whole process meanwhile.
    If the import fails, because clients have taken all open files, the next line that is logged tries again.
    """
    hidden: dict[str, Any] = {} if "rich" in sys.modules else {"rich": None}
    sys.modules.update(hidden)
    try:
        with suppress(OSError):
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
            # The reader may be gone (a closed pipe): that is no reason for the logged operation to fail.
            with suppress(OSError, ValueError):
                if (logger := _structlog()) is not None:
                    getattr(logger, level)(event, **self._fields, **fields)


class _Forward(logging.Handler):
    """Turns standard library log records into our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        names = [name for name, least in LEVELS.items() if record.levelno >= least]
        fields: dict[str, object] = {"logger": record.name}
        if record.exc_info is not None:
            fields["exc_info"] = record.exc_info
        Logger(**fields)._write(names[-1] if names else "debug", record.getMessage(), {})


class _Quoted:
    """A string that is shown as Python would write it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _escape(logger: Any, method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Keep control characters from a terminal, which obeys them: clients choose names and ids."""
    for name, value in fields.items():
        if isinstance(value, str) and not value.isprintable():
            fields[name] = _escaped(value) if name in _SHOWN_AS_THEY_ARE else _Quoted(value)
    return fields


def _escaped(text: str) -> str:
    """The text with control characters escaped, except line ends."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def _structlog() -> Any:
    """structlog's logger for the next line; None where there is no standard error.

    pytest, and whoever else captures output, replaces sys.stderr and closes it later.
    """
    stream: TextIO | None = _Output.stream or sys.stderr
    if stream is None:
        return None
    target = _Output.writer or stream
    # Another thread may set the level meanwhile, which resets the logger.
    made_for, logger = _Output.logger or (None, None)
    if made_for is not target:
        import structlog

        human = _Output.format == "human" or (_Output.format == "auto" and stream.isatty())
        processors: list[Any] = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if human else "iso", utc=not human),
        ]
        if human:

            def traceback(text: TextIO, exc_info: Any) -> None:
                structlog.dev.plain_traceback(plain := StringIO(), exc_info)
                text.write(_escaped(plain.getvalue()))

            processors += [
                _escape,
                structlog.dev.ConsoleRenderer(
                    colors=stream.isatty(), exception_formatter=traceback, pad_event_to=28
                ),
            ]
        else:
            processors += [
                # Without local variables: they hold credentials and records.
                structlog.processors.ExceptionRenderer(
                    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
                ),
                structlog.processors.JSONRenderer(default=str),
            ]
        logger = structlog.wrap_logger(
            structlog.WriteLogger(cast(TextIO, target)),
            processors=processors,
            wrapper_class=structlog.make_filtering_bound_logger(_Output.level),
        )
        _Output.logger = target, logger
    return logger

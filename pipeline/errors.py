"""Errors before, beside or inside Spark, in words for whoever started the job."""

from __future__ import annotations

import logging
import re
from typing import Final, Protocol

log = logging.getLogger(__name__)

_OURS: Final = re.compile(r"^(?:muster\.(?:pipeline|client|protocol)\.[\w.]+): (.+)$", re.MULTILINE)
_EXECUTABLE: Final = re.compile(r'Cannot run program "([^"]+)"')
_VERSIONS: Final = re.compile(r"different (?:minor )?version: ([\d.]+) than that in driver: ([\d.]+)")
_NOT_A_PYTHON: Final = re.compile(
    r"Bad data in pyspark.daemon's standard output.*command to execute the daemon was:\s*(\S+)", re.DOTALL
)
_BROKEN_PYTHON: Final = re.compile(r"Error from python worker:\s*\n(.*?)\n\s*PYTHONPATH was:", re.DOTALL)
_NO_MODULE: Final = re.compile(
    r"ModuleNotFoundError: No module named"
    r" '((?:muster|pyspark|pyarrow|numpy|pandas|construct|cramjam|google_crc32c|google\.protobuf)\b[\w.]*"
    r"|google)'"
)
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
_JAVA_FRAME: Final = re.compile(r"^\s*(?:at [\w.$<>/]+\(|\.\.\. \d+ more|File \").*$", re.MULTILINE)


class PipelineError(Exception):
    """An error that the user can fix; the text says what is wrong and what to do."""


class OptionError(PipelineError, ValueError):
    """An option of the format "muster", or of a command, is unknown, missing or wrong; the text names it."""


class DataLost(PipelineError):
    """Records that should have been read no longer exist."""


class Options(Protocol):
    """The source options that matter here."""

    @property
    def fail_on_data_loss(self) -> bool: ...


def data_lost(options: Options, what: str) -> None:
    """Raise DataLost, or log it if `failOnDataLoss` is false."""
    if options.fail_on_data_loss:
        raise DataLost(f"{what} (option failOnDataLoss=false goes on with what there is)")
    log.warning("%s; reading goes on with what there is", what)


def from_spark(error: BaseException) -> str | None:
    """What a Spark exception means to the user, or None if it is not Spark's.

    An error that the source or the writer raises in Python comes back through the JVM, as text with both
    stack traces: only its original message is returned. The same goes for an error of a user's function.
    Anything else is reduced to its first lines, without traces.
    """
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    told = _of_workers(text)
    if told:
        return told
    raised = _RAISED.findall(text)
    if raised:
        return str(raised[-1])
    lines = [line.strip() for line in _JAVA_FRAME.sub("", text).splitlines() if line.strip()]
    return "\n".join(lines[:6]) or type(error).__name__


def _of_workers(text: str) -> str | None:
    """What is wrong with an executor's Python, if Spark reports it in a known way."""
    names = (
        "PYSPARK_PYTHON names one that every machine of the cluster has, with muster-kafka[spark] installed"
        " in it"
    )
    if found := _EXECUTABLE.search(text):
        return f"an executor has no Python at {found[1]}: {names}"
    if found := _VERSIONS.search(text):
        return (
            f"executors run Python {found[1]}, the driver {found[2]}, and Spark takes the same on both sides:"
            f" {names}"
        )
    if found := _NOT_A_PYTHON.search(text):
        return f"{found[1]}, which an executor took for its Python, is none that works: {names}"
    if found := _NO_MODULE.search(text):
        return f"a Python of Spark's lacks the module {found[1]}: {names}"
    if found := _BROKEN_PYTHON.search(text):
        words = found[1].strip().splitlines()[-1].strip()
        return f"the Python of an executor does not run ({words}): {names}"
    return None

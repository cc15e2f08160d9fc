"""What goes wrong before, beside or inside Spark, in words for whoever started the job."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^(?:muster\.(?:pipeline|client|protocol)\.[\w.]+): (.+)$", re.MULTILINE)
_EXECUTABLE: Final = re.compile(r'Cannot run program "([^"]+)"')
_JAVA_FRAME: Final = re.compile(r"^\s*(?:at [\w.$<>/]+\(|\.\.\. \d+ more|File \").*$", re.MULTILINE)


class PipelineError(Exception):
    """Something that the user can put right; the text says what it is, and what to do."""


class OptionError(PipelineError, ValueError):
    """An option of the format "muster", or of a command, is unknown, missing or wrong; the text names it."""


def from_spark(error: BaseException) -> str | None:
    """What an exception of Spark's means to the user, or None for one that is not Spark's.

    What the source or the writer raise in Python comes back through the JVM, as text with the traces of both:
    it is told as it was raised. Of anything else the first lines are, without traces.
    """
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    missing = _EXECUTABLE.search(text)
    if missing:
        return (
            f"an executor has no Python at {missing[1]}: PYSPARK_PYTHON names one that every machine of the"
            " cluster has, with muster-kafka[spark] installed in it"
        )
    lines = [line.strip() for line in _JAVA_FRAME.sub("", text).splitlines() if line.strip()]
    return "\n".join(lines[:6]) or type(error).__name__

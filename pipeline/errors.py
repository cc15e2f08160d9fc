"""What goes wrong before or beside Spark, in words for whoever started the job."""

from __future__ import annotations


class PipelineError(Exception):
    """Something that the user can put right; the text says what it is, and what to do."""


class OptionError(PipelineError, ValueError):
    """An option of the format "muster", or of a command, is unknown, missing or wrong; the text names it."""

"""What the C library does with memory that was freed."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 1024 * 1024
_LARGE_BYTES: Final = 4 * 1024 * 1024


def keep_freed() -> None:
    """Keep up to 16 MiB of freed memory for the next answers, where the C library can be told (glibc).

    It would give a megabyte that a Fetch has read into back to the system each time, and have it back page by
    page, each of them cleared first: a quarter of a Fetch. For a process of its own alone, since it holds for
    all of it.
    """
    with suppress(ImportError, AttributeError, OSError, TypeError):  # no ctypes, or another C library
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)

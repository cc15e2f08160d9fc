"""Everything that differs between operating systems, and nothing else: files, locks, limits, keys, ports,
signals, memory.

The rest of muster calls these and is the same everywhere. The tests run on Linux; macOS and Windows are
untested: `make check` only has the type checker verify that every call exists there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

CONNECTIONS_UNLIMITED: Final = 2**31 - 1
_SPARE_FILES: Final = 256
"""Open files reserved for segments and the store, not available to connections."""
_OPEN_FILES: Final = (65_536, 10_240)
"""Limits to try where the hard limit is refused: macOS accepts neither "unlimited" nor more than
kern.maxfilesperproc."""
LOCK_HELD: Final = frozenset((errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK))
"""Windows has the last two."""
_WRITEV_BUFFERS_MAX: Final = 512  # below every system's IOV_MAX
_TRIM_THRESHOLD: Final = -1  # of glibc's mallopt
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 1024 * 1024
_LARGE_BYTES: Final = 4 * 1024 * 1024

if sys.platform == "win32":
    import _winapi
    import msvcrt
    import time

    _SHARED: Final = 0x7  # FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_SHARE_DELETE
    _OPEN_ALWAYS: Final = 4
    # On Windows others cannot read a locked region: lock a byte far beyond what is written.
    _LOCKED_BYTE: Final = 1 << 30
    _positioned = threading.Lock()
    _WRITABLE_S: Final = 0.01  # pipes cannot be waited for

    def try_lock(descriptor: int) -> None:
        """Lock this file against other processes until it is closed. Raises OSError, with a code of
        `LOCK_HELD` if another holds it."""
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)

    def wait_writable(descriptor: int) -> None:
        """Wait until a descriptor in non-blocking mode takes more, or an error."""
        time.sleep(_WRITABLE_S)

    def open_appending(path: str, *, create: bool) -> int:
        """A descriptor that reads anywhere and writes at the end. Raises OSError."""
        # Not os.open: it lets nobody rename or remove the file while it is open, not even this process.
        access = _winapi.GENERIC_READ | _winapi.GENERIC_WRITE
        disposition = _OPEN_ALWAYS if create else _winapi.OPEN_EXISTING
        try:
            handle = _winapi.CreateFile(path, access, _SHARED, _winapi.NULL, disposition, 0, _winapi.NULL)
        except OSError as error:
            error.filename = path
            raise
        return msvcrt.open_osfhandle(handle, os.O_RDWR | os.O_APPEND | os.O_BINARY | os.O_NOINHERIT)

    def pread(descriptor: int, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`, from any thread."""
        with _positioned:
            os.lseek(descriptor, position, os.SEEK_SET)
            return os.read(descriptor, size)

    def write_some(descriptor: int, buffers: Sequence[memoryview]) -> int:
        """Write as much of `buffers` as the system takes at once. Returns the number of bytes written."""
        with _positioned:
            return os.write(descriptor, buffers[0])

    def claim_port(made: socket.socket) -> None:
        """Have `bind` refuse a port that another program listens on: without this, Windows lets two programs
        share it if both set SO_REUSEADDR."""
        made.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)

    _sync = os.fsync

    def sync_folder(path: str) -> None:
        """Return once the names in this folder would survive a crash of the machine: NTFS logs them
        itself."""

    def others_may_read(path: str) -> bool:
        """Whether every user of this machine may read a file: here, access control lists decide."""
        return False

    def open_files_limit() -> int | None:
        """How many files this process may open; None if unlimited."""
        return None

    def raise_open_files_limit() -> None:
        """Let this process open as many files as it may."""

    def unbuffer_keys(descriptor: int) -> Callable[[], None] | None:
        """Have a terminal deliver each key as it is pressed. Returns a function that undoes this, None if
        unsupported."""
        return None

else:
    import fcntl
    import resource
    import select

    def try_lock(descriptor: int) -> None:
        """Lock this file against other processes until it is closed. Raises OSError, with a code of
        `LOCK_HELD` if another holds it."""
        # flock, not lockf: a POSIX record lock is lost when any descriptor of the file is closed here.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait_writable(descriptor: int) -> None:
        """Wait until a descriptor in non-blocking mode takes more, or an error."""
        writable = select.poll()
        writable.register(descriptor, select.POLLOUT)
        writable.poll()

    def open_appending(path: str, *, create: bool) -> int:
        """A descriptor that reads anywhere and writes at the end. Raises OSError."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o644)

    pread = os.pread

    def write_some(descriptor: int, buffers: Sequence[memoryview]) -> int:
        """Write as much of `buffers` as the system takes at once. Returns the number of bytes written."""
        return os.writev(descriptor, buffers[:_WRITEV_BUFFERS_MAX])

    def claim_port(made: socket.socket) -> None:
        """Have `bind` take the port of a broker that was just stopped (TIME_WAIT would keep it for a minute),
        and refuse one that another program listens on."""
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    if sys.platform == "darwin":

        def _sync(descriptor: int) -> None:
            # fsync leaves the data in the drive's cache.
            try:
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            except OSError as error:
                if error.errno != errno.ENOTSUP:  # as on a network's file system
                    raise
                os.fsync(descriptor)
    else:

        def _sync(descriptor: int) -> None:
            os.fsync(descriptor)

    def sync_folder(path: str) -> None:
        """Return once the names in this folder would survive a crash of the machine."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def others_may_read(path: str) -> bool:
        """Whether every user of this machine may read a file. Raises OSError."""
        return bool(os.stat(path).st_mode & 0o004)

    def open_files_limit() -> int | None:
        """How many files this process may open; None if unlimited."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if limit == resource.RLIM_INFINITY else limit

    def raise_open_files_limit() -> None:
        """Let this process open as many files as it may: every connection is a file, and the usual limit is
        1024."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == hard:
            return
        for wanted in (hard, *_OPEN_FILES):
            if wanted != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or wanted > soft):
                try:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                except (ValueError, OSError):
                    continue
                return

    def unbuffer_keys(descriptor: int) -> Callable[[], None] | None:
        """Have a terminal deliver each key as it is pressed. Returns a function that undoes this, None if
        unsupported. Ctrl-C still works; Ctrl-Z does nothing."""
        import termios
        import tty

        before = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)

        def restore() -> None:
            with suppress(termios.error):  # the terminal may be gone
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

        return restore


if sys.platform == "linux":
    TELLS_CACHED: Final = hasattr(os, "RWF_NOWAIT")
    """Whether the system can tell which parts of a file are in memory: Linux 4.14 and later."""

    def read_cached(descriptor: int, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position` without waiting for a disk. Returns the number of bytes read. Raises
        OSError: EAGAIN if none of it is in memory, EOPNOTSUPP if the file system cannot tell."""
        return os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT)

    sync_data = os.fdatasync
else:
    TELLS_CACHED: Final = False
    """Whether the system can say what it has of a file in memory: Linux 4.14 and later."""

    def read_cached(descriptor: int, buffer: memoryview, position: int) -> int:
        """Never called here, since TELLS_CACHED is false."""
        raise NotImplementedError

    sync_data = _sync


def connections_max() -> int:
    """The number of connections that the limit on open files allows."""
    limit = open_files_limit()
    return CONNECTIONS_UNLIMITED if limit is None else max(limit - _SPARE_FILES, limit // 2, 1)


def open_standard_files() -> None:
    """Open the null device as standard input, output and error if the process was started without them. Else
    the next files get their numbers: sockets that the event loop never closes, or a partition's log, to which
    a library's message would go. Call before opening anything but standard error
    (`arguments.open_standard_error`)."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)


def on_signals(numbers: Sequence[int], handler: Callable[[int], object]) -> None:
    """Have the running loop call `handler` with the signal number whenever one of these signals arrives.

    Raises RuntimeError or ValueError outside the main thread.
    """
    loop = asyncio.get_running_loop()
    for number in numbers:
        try:
            loop.add_signal_handler(number, handler, number)
        except NotImplementedError:  # not supported by Windows loops
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(handler, received))


def keep_freed_memory() -> None:
    """Keep up to 16 MiB of freed memory for the next responses, where the C library supports it (glibc).

    Otherwise the megabyte that a Fetch reads into would go back to the system each time, and be obtained
    again page by page, each cleared first: a quarter of the cost of a Fetch. Only for a process of our own,
    since it affects all of it.
    """
    with suppress(ImportError, AttributeError, OSError, TypeError):  # no ctypes, or another C library
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)

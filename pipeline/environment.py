"""Checks whether Spark can run here before it starts, within seconds: Spark's own errors name the symptom (a
gateway that exited, a worker without a module), not the cause.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from muster.pipeline.errors import PipelineError

JAVA_MIN: Final = 17
"""Spark 4's classes target Java 17 (major version 61)."""
INSTALL: Final = "pip install 'muster-kafka[spark]'"
_ANSWER_S: Final = 20.0
"""How long a program may take to print its version."""
_CONNECT_S: Final = 10.0
_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[\d+\s*,\s*\d+\s*,\s*\d+\]|yarn|k8s://.+"
)
"""Spark's masters other than a standalone one."""

_PACKAGES: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, str]]] = {
    "pyspark": ((4, 2), (5,), "the data source's limits and triggers came with 4.2"),
    "pyarrow": ((18,), None, "Spark 4 takes no older one"),
    "pandas": ((2, 2), (3,), "pyspark does not support pandas 3 yet"),
    "protobuf": ((6, 33, 5), (8,), "Spark's state of streams is spoken with by it"),
    "matplotlib": ((3, 8), None, "reports are drawn with it"),
}
"""By package: the oldest supported version, the first one no longer supported, and why."""

_PROBE: Final = """\
import sys
from importlib.util import find_spec
print(".".join(map(str, sys.version_info[:2])))
print(" ".join(each for each in {names!r} if find_spec(each) is None))
"""
NEEDED: Final = ("muster", "pyspark", "pyarrow", "numpy", "construct", "cramjam", "google_crc32c")
"""Modules that reading and writing import, on workers too."""


def check_packages(versions: Mapping[str, str | None] | None = None) -> None:
    """Raises PipelineError for a package of the extra that is missing, too old or too new. `versions` are the
    installed versions by name (None: those installed here)."""
    for name, (first, end, why) in _PACKAGES.items():
        found = _installed(name) if versions is None else versions.get(name)
        wanted = f"{name}>={_dotted(first)}" + (f",<{_dotted(end)}" if end else "")
        if found is None:
            raise PipelineError(f"the package {name} is not installed: {INSTALL} brings it ({wanted})")
        version = tuple(int(part) for part in re.findall(r"\d+", found.split("+")[0])[:3])
        if version < first or (end is not None and version >= end):
            raise PipelineError(
                f"{name} {found} is installed; the pipeline takes {wanted} ({why}): {INSTALL} puts that right"
            )


def check_java(variables: Mapping[str, str]) -> None:
    """Raises PipelineError if Java is missing or older than 17. Looks for it as Spark does: below JAVA_HOME
    if that is set, else on the PATH."""
    home = variables.get("JAVA_HOME")
    if home:
        java, where = str(Path(home) / "bin" / "java"), f"JAVA_HOME={home}"
        if not os.access(java, os.X_OK):
            raise PipelineError(
                f"{where}: there is no {java}; it takes the folder of a JDK or JRE, {_DO_JAVA}"
            )
    else:
        found = shutil.which("java", path=variables.get("PATH", os.defpath))
        if found is None:
            raise PipelineError(f"Spark runs on Java, and there is no java on the PATH: install {_DO_JAVA}")
        java, where = found, found
    said = _answer([java, "-version"], variables)
    version = re.search(r'version "(?:1\.)?(\d+)', said or "")
    if version is None:
        raise PipelineError(f"{where}: `{java} -version` does not tell its version; install {_DO_JAVA}")
    if int(version[1]) < JAVA_MIN:
        raise PipelineError(
            f"{where} is Java {version[1]}; Spark 4 takes {JAVA_MIN} or later: install {_DO_JAVA}"
        )


_DO_JAVA: Final = (
    f"a Java of version {JAVA_MIN} or later (Debian and Ubuntu: openjdk-{JAVA_MIN}-jre-headless), and let"
    " JAVA_HOME name it if there are several"
)


def check_worker_python(variables: Mapping[str, str]) -> None:
    """Raises PipelineError if PYSPARK_PYTHON names a Python that workers cannot use: it is missing, has
    another version than this one, or lacks a package. If it is not set, workers use this Python (see
    `muster.pipeline.session`). A relative path refers to the executors and is checked there
    (`check_executors`)."""
    named = variables.get("PYSPARK_PYTHON")
    if not named or named == sys.executable or (os.sep in named and not os.path.isabs(named)):
        return
    found = shutil.which(named, path=variables.get("PATH", os.defpath))
    if found is None:
        raise PipelineError(
            f"PYSPARK_PYTHON={named}: there is no such program here; unset it, or set it to {sys.executable}"
        )
    if found == sys.executable:
        return
    said = _answer([found, "-c", _PROBE.format(names=NEEDED)], variables)
    lines = (said or "").splitlines()
    if len(lines) < 2:
        raise PipelineError(
            f"PYSPARK_PYTHON={named}: {found} does not run as a Python; unset it, or set it to"
            f" {sys.executable}"
        )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if lines[0] != here:
        raise PipelineError(
            f"PYSPARK_PYTHON={named} is Python {lines[0]}, this is {here}: Spark takes the same on both"
            f" sides; set it to {sys.executable}"
        )
    if lines[1].strip():
        raise PipelineError(
            f"PYSPARK_PYTHON={named} lacks {', '.join(lines[1].split())}: install muster-kafka[spark] there"
            f" ({found} -m {INSTALL}), or set it to {sys.executable}"
        )


def check_master(master: str) -> None:
    """Raises PipelineError for a master that Spark does not support, or a standalone one that does not
    answer.

    Spark itself tries a standalone master for a minute, then fails in the middle of its startup.
    """
    hint = "--master takes local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
    if master.startswith("sc://"):
        raise PipelineError(f"master {master}: a job has a driver of its own, not Spark Connect; {hint}")
    if not master.startswith("spark://"):
        if not _MASTER.fullmatch(master):
            raise PipelineError(f"master {master}: Spark has none like this; {hint}")
        return
    refused = []
    for address in master.removeprefix("spark://").split(","):
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536):
            raise PipelineError(f"master {master}: {address!r} is not HOST:PORT; {hint}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            return
        except OSError as error:
            refused.append(f"{address}: {error}")
    raise PipelineError(f"no Spark master answers at {master} ({'; '.join(refused)})")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _answer(command: list[str], variables: Mapping[str, str]) -> str | None:
    """What a program prints, or None if it fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            env=dict(variables),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None

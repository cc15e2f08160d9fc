"""Whatever Spark needs and is missing: one message that says what to do, within seconds."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from muster.pipeline import environment
from muster.pipeline.environment import check_java, check_master, check_packages, check_worker_python
from muster.pipeline.errors import PipelineError

GOOD = {
    "pyspark": "4.3.0",
    "pyarrow": "26.0.1",
    "pandas": "2.3.3",
    "protobuf": "7.36.2",
    "matplotlib": "3.11.2",
}
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def program(path: Path, *lines: str) -> Path:
    """Write a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return path


def java(path: Path, version: str) -> Path:
    return program(path, f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")


def with_path(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])}


# --- packages -----------------------------------------------------------------------------------------------


def test_what_is_installed_here_will_do() -> None:
    check_packages()
    check_packages(GOOD)
    check_packages(GOOD | {"pyspark": "4.2.0.dev3", "pyarrow": "18.0.0+build"})


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("pyspark", None, r"pyspark is not installed: pip install 'muster-kafka\[spark\]' brings it"),
        ("pyspark", "4.1.9", r"pyspark 4\.1\.9 is installed; the pipeline takes pyspark>=4\.2,<5"),
        ("pyspark", "5.0.0", r"pyspark 5\.0\.0 is installed"),
        ("pyarrow", "17.0.0", r"takes pyarrow>=18"),
        ("pandas", "3.1.1", r"takes pandas>=2\.2,<3 \(pyspark does not support pandas 3"),
        ("pandas", None, "pandas is not installed"),
        ("matplotlib", None, "matplotlib is not installed"),
    ],
)
def test_a_package_that_will_not_do(name: str, version: str | None, told: str) -> None:
    with pytest.raises(PipelineError, match=told):
        check_packages({**GOOD, name: version})


# --- Java ---------------------------------------------------------------------------------------------------


def test_the_java_of_this_machine_will_do() -> None:
    check_java(os.environ)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_java_on_the_path(tmp_path: Path, version: str) -> None:
    java(tmp_path / "java", version)
    check_java(with_path(tmp_path))


@pytest.mark.parametrize(("version", "told"), [("11.0.2", "Java 11"), ("1.8.0_402", "Java 8")])
def test_java_that_is_too_old(tmp_path: Path, version: str, told: str) -> None:
    java(tmp_path / "java", version)
    with pytest.raises(PipelineError, match=f"{told}; Spark 4 takes 17 or later: install"):
        check_java(with_path(tmp_path))


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no java on the PATH: install a Java of version 17"):
        check_java({"PATH": str(tmp_path)})


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    java(tmp_path / "new" / "java", "21")
    java(tmp_path / "old" / "bin" / "java", "11.0.2")
    with pytest.raises(PipelineError, match=r"JAVA_HOME=.*old is Java 11"):
        check_java({**with_path(tmp_path / "new"), "JAVA_HOME": str(tmp_path / "old")})
    with pytest.raises(PipelineError, match=r"JAVA_HOME=.*gone: there is no .*gone/bin/java"):
        check_java({**with_path(tmp_path / "new"), "JAVA_HOME": str(tmp_path / "gone")})


def test_java_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "java", "exit 1")
    with pytest.raises(PipelineError, match="does not tell its version"):
        check_java(with_path(tmp_path))
    monkeypatch.setattr(environment, "_ANSWER_S", 0.2)
    program(tmp_path / "java", "exec sleep 600")
    with pytest.raises(PipelineError, match="does not tell its version"):
        check_java(with_path(tmp_path))


# --- the workers' Python ------------------------------------------------------------------------------------


def python(path: Path, version: str, lacking: str = "") -> Path:
    return program(path, f"echo '{version}'", f"echo '{lacking}'")


def test_pyspark_python_that_will_do(tmp_path: Path) -> None:
    check_worker_python({})
    check_worker_python({"PYSPARK_PYTHON": sys.executable})
    check_worker_python({"PYSPARK_PYTHON": "./environment/bin/python"})  # in an archive, on the executors
    python(tmp_path / "python-of-workers", HERE)
    check_worker_python({**with_path(tmp_path), "PYSPARK_PYTHON": "python-of-workers"})


def test_another_real_python_is_asked(tmp_path: Path) -> None:
    """A real Python can answer the question: here one that finds no packages."""
    bare = program(tmp_path / "python-without", f'exec "{sys.executable}" -I -S "$@"')
    with pytest.raises(PipelineError, match=r"lacks muster, pyspark, pyarrow, numpy, .*: install"):
        check_worker_python({**with_path(), "PYSPARK_PYTHON": str(bare)})


@pytest.mark.parametrize(
    ("version", "lacking", "told"),
    [
        ("3.9", "", f"is Python 3.9, this is {HERE}: .* set it to {sys.executable}"),
        (HERE, "pyarrow", r"lacks pyarrow: install muster-kafka\[spark\] there"),
        ("", "", "does not run as a Python"),
    ],
)
def test_pyspark_python_that_will_not_do(tmp_path: Path, version: str, lacking: str, told: str) -> None:
    there = (
        python(tmp_path / "python-there", version, lacking) if version else program(tmp_path / "python-there")
    )
    with pytest.raises(PipelineError, match=f"PYSPARK_PYTHON=.*python-there.*{told}"):
        check_worker_python({**with_path(), "PYSPARK_PYTHON": str(there)})


def test_pyspark_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"no such program here; unset it, or set it to {sys.executable}"):
        check_worker_python({**with_path(), "PYSPARK_PYTHON": str(tmp_path / "gone")})


# --- the master ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[4]",
        "local[2, 3]",
        "local-cluster[2,1,512]",
        "yarn",
        "k8s://https://k:6443",
    ],
)
def test_masters_that_spark_has(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "locl[2]", "local[0]", "local[]", "spark:/h:7077", "mesos://h", "Yarn"]
)
def test_masters_that_spark_has_not(master: str) -> None:
    with pytest.raises(
        PipelineError, match=r"Spark has none like this; --master takes local\[\*\], spark://HOST"
    ):
        check_master(master)
    with pytest.raises(PipelineError, match="a job has a driver of its own, not Spark Connect"):
        check_master("sc://here:15002")


@pytest.mark.parametrize("address", ["", "here", "here:", ":7077", "here:port", "here:0", "here:70777"])
def test_a_standalone_master_without_host_or_port(address: str) -> None:
    with pytest.raises(PipelineError, match=f"'{address}' is not HOST:PORT"):
        check_master(f"spark://{address}")


def test_a_standalone_master_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{there}")
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{there}")  # one of two that can replace each other
    nowhere = f"spark://127.0.0.1:{there},127.0.0.1:1"
    with pytest.raises(PipelineError, match=f"no Spark master answers at {nowhere} .*:{there}: .*:1: "):
        check_master(nowhere)


def test_a_standalone_master_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a machine that drops packets: its queue of new connections is full, and nobody accepts any."""
    monkeypatch.setattr(environment, "_CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        where = server.getsockname()
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(where)
            waiting.append(client)
        with pytest.raises(PipelineError, match=r"no Spark master answers at .* timed out"):
            check_master(f"spark://127.0.0.1:{where[1]}")
        for client in waiting:
            client.close()

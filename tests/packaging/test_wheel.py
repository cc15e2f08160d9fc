"""The wheel beside a user's own `client.py` and `protocol/`: neither hides the other."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USER_PROGRAM = """
import client, protocol
import muster, muster.client.network.cluster, muster.protocol.api, muster.coordinator.cli

assert client.OWNER == "user" and protocol.OWNER == "user", (client.__file__, protocol.__file__)
print(muster.__file__)
print(muster.protocol.__file__)
"""

STATIC = Path("coordinator/web/static")
"""The page's files."""
FORMAT = "pyspark_muster.py"
"""Next to the package, where Spark looks for the format "muster"."""
LOGGING = "muster/pipeline/log4j2.properties"

WITHOUT_SPARK = """
import sys
from importlib import metadata

extra, found = ("pyspark", "pyarrow", "pandas", "numpy", "matplotlib"), metadata.version

def version(name):
    if name in extra:
        raise metadata.PackageNotFoundError(name)
    return found(name)

metadata.version = version
sys.modules.update(dict.fromkeys(extra))  # as if it were not installed
import muster.client.consumer, muster.coordinator.testing.plugin, muster.coordinator.cli, muster.pipeline.cli

print(muster.pipeline.cli.__file__)
sys.exit(muster.pipeline.cli.main(["ingest", "--topics", "orders", "--to", "lake"]))
"""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that `build` makes from the unpacked sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def test_archives_carry_every_module_once(archives: tuple[Path, Path]) -> None:
    sdist, wheel = archives
    modules = {
        f"muster/{path.relative_to(ROOT)}"
        for folder in ("protocol", "coordinator", "client", "pipeline")
        for path in (ROOT / folder).rglob("*.py")
    }
    modules |= {f"muster/{path.name}" for path in (ROOT / "muster").glob("*.py")}
    page = {f"muster/{path.relative_to(ROOT)}" for path in (ROOT / STATIC).iterdir()}
    assert page
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    in_wheel = {name for name in names if name.endswith(".py")}
    assert in_wheel == modules | {FORMAT}
    assert page | {LOGGING} <= names
    with tarfile.open(sdist) as tar:
        members = tar.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    in_sdist = {member.name.split("/", 1)[1] for member in members if "/" in member.name}
    assert modules | page | {FORMAT, LOGGING} <= in_sdist


def test_installed_wheel_beside_a_users_own_modules(archives: tuple[Path, Path], tmp_path: Path) -> None:
    site, user = tmp_path / "site", tmp_path / "user"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "--target", site, archives[1])
    (user / "protocol").mkdir(parents=True)
    (user / "client.py").write_text("OWNER = 'user'\n")
    (user / "protocol" / "__init__.py").write_text("OWNER = 'user'\n")
    (user / "program.py").write_text(USER_PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(user), str(site)])}
    places = run(sys.executable, "program.py", cwd=user, env=environment).split()
    assert places == [str(site / "muster" / "__init__.py"), str(site / "muster" / "protocol" / "__init__.py")]
    assert (site / "muster" / "py.typed").exists()
    assert "muster 0.1.0" in run(sys.executable, "-m", "muster", "--version", cwd=user, env=environment)


def test_installed_wheel_without_the_extra(archives: tuple[Path, Path], tmp_path: Path) -> None:
    """Only the pipeline's work needs Spark, and its command says what to install."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "--target", site, archives[1])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == str(site / "muster" / "pipeline" / "cli.py"), done.stderr
    assert done.returncode == 1
    assert "pip install 'muster-kafka[spark]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1

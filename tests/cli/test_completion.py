"""`muster completion`: its scripts in real shells. bash runs everywhere; zsh and fish run where they are
installed, and their scripts are checked everywhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from muster.coordinator import command_line
from tests.cli.running import DEADLINE_S, Muster

_BASH = r"""
source "$1"; shift
declared=$(complete -p muster); function=${declared##*-F }; function=${function%% *}
COMP_WORDS=(muster "$@"); COMP_CWORD=$#; COMP_LINE="muster $*"; COMP_POINT=${#COMP_LINE}
"$function" muster "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""

LINES = [
    ("gro", ["groups"]),
    ("completion ", ["bash", "zsh", "fish"]),
    ("cluster ", ["describe", "ready", "drain", "undrain"]),
    ("groups list --sta", ["--state"]),
    ("groups list --output ", ["table", "json", "csv"]),
    ("groups list --type ", ["classic", "consumer", "share", "streams"]),
    ("produce t --compression ", ["none", "gzip", "snappy", "lz4", "zstd"]),
    ("users create --mechanism ", ["SCRAM-SHA-256", "SCRAM-SHA-512"]),
    ("serve --log-format ", ["auto", "human", "json"]),
    ("serve --ephemeral ", ["true", "false"]),
    ("test faults add --er", ["--error"]),
]


@pytest.fixture
def muster(capfd: pytest.CaptureFixture[str]) -> Muster:
    """Without a broker: completion needs none."""
    return Muster("127.0.0.1:9", capfd)


@pytest.fixture
def script(muster: Muster, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The completion script for one shell."""
    path = tmp_path / f"completion.{request.param}"
    path.write_text(muster.done("completion", request.param))
    return path


def ran(*command: str, cwd: Path) -> list[str]:
    """The lines that a shell printed; it must succeed without errors."""
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=cwd, env=_plain()
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout.splitlines()


def _plain() -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes(script: Path, tmp_path: Path) -> None:
    def completed(line: str) -> list[str]:
        found = ran("bash", "-c", _BASH, "bash", str(script), *line.split(" "), cwd=tmp_path)
        return [each.strip() for each in found if each.strip()]

    for line, expected in LINES:
        assert sorted(completed(line)) == sorted(expected), line
    (tmp_path / "orders.txt").touch()
    assert completed("produce t --file ord") == ["orders.txt"]
    for command in ("users create", "store check", "serve"):
        assert completed(f"{command} --data ord") == ["orders.txt"], command
    assert {each for each in completed("") if not each.startswith("-")} == command_line.EVERYTHING


@pytest.mark.parametrize("script", ["zsh", "fish"], indirect=True)
def test_every_command_option_and_value_is_in_the_script(script: Path) -> None:
    text = script.read_text()
    for each in (
        *command_line.EVERYTHING,
        "reset-offsets",
        "by-duration",
        "LogAppendTime",
        "zstd",
        "fetch-max-bytes",
    ):
        assert each in text


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes(script: Path, tmp_path: Path) -> None:
    assert script.read_text().count("complete -c muster") > 200
    if shutil.which("fish", path=_plain()["PATH"]) is None:
        return  # the test above checks the script's text
    for line, expected in LINES:
        asked = f"source {script}; complete -C 'muster {line}'"
        found = [each.split("\t")[0] for each in ran("fish", "--no-config", "-c", asked, cwd=tmp_path)]
        assert sorted(found) == sorted(expected), line


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_takes_the_script(script: Path, tmp_path: Path) -> None:
    assert script.read_text().startswith("#compdef muster\n")
    if shutil.which("zsh", path=_plain()["PATH"]) is None:
        return  # the test above checks the script's text
    load = (
        f'autoload -Uz compinit; compinit -u -d {tmp_path}/dump; eval "$(<{script})"; print $_comps[muster]'
    )
    (function,) = ran("zsh", "-f", "-c", load, cwd=tmp_path)
    assert function.startswith("_shtab_muster")


def test_a_shell_it_does_not_know(muster: Muster) -> None:
    said = muster.misused("completion", "powershell")
    assert "choose from bash, zsh, fish" in said
    assert "the following arguments are required: SHELL" in muster.misused("completion")

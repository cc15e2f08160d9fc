"""`python -m muster.protocol`, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from muster.protocol.__main__ import main


def test_source_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["JoinGroupRequest", "9"]) == 0
    printed = capsys.readouterr().out
    compile(printed, "printed", "exec")
    assert "def decode(data: bytes, at: i64, end: i64, elements: i64) -> tuple[Any, int]:" in printed
    assert "message.group_id" in printed


def test_the_newest_version_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    main(["HeartbeatRequest"])
    newest = capsys.readouterr().out
    main(["HeartbeatRequest", "4"])
    assert capsys.readouterr().out == newest


def test_list_of_messages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.split() == ["JoinGroupRequest", "api", "11", "versions", "0-9", "flexible", "6+"]
        for line in lines
    )
    assert any(line.startswith("OffsetCommitValue ") for line in lines)
    assert any(line.startswith("ConsumerProtocolSubscription ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["JoinGroupRequst"], "There is no message JoinGroupRequst; did you mean JoinGroupRequest"),
        (["Zzz"], "There is no message Zzz; run without arguments to see all."),
        (["JoinGroupRequest", "10"], "JoinGroupRequest has versions 0-9, not 10."),
        (["JoinGroupRequest", "-1"], "JoinGroupRequest has versions 0-9, not -1."),
    ],
)
def test_mistakes(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


def test_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "muster.protocol", "Nonsense", "1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "There is no message Nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_compiles_nothing() -> None:
    """The server must be ready in a fraction of a second, and uses only a few of all versions."""
    program = (
        "from muster.protocol import api, codec, compiler, header; api.load_messages();"
        "print(compiler.decoder.cache_info().currsize, compiler.encoder.cache_info().currsize)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0", "0"]

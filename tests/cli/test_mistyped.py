"""A misspelt command, option or value: one line that suggests the right one, and exit code 2."""

from __future__ import annotations

import pytest

from tests.cli.running import Muster
from tests.support.each import each


@each(
    "line, said",
    [
        ("gruops", "muster: unknown command 'gruops', did you mean groups? muster --help lists them"),
        ("xyzzy", "muster: unknown command 'xyzzy'; muster --help lists them"),
        (
            "groups descibe",
            "muster groups: unknown action 'descibe', did you mean describe? muster groups --help lists them",
        ),
        (
            "test fault add",
            "muster test: unknown subject 'fault', did you mean faults? muster test --help lists them",
        ),
        (
            "groups list --stat Stable",
            "muster groups list: unknown option --stat, did you mean --state? "
            "muster groups list --help lists them",
        ),
        (
            "serve --prot=9092",
            "muster serve: unknown option --prot, did you mean --port? muster serve --help lists them",
        ),
        (
            "serve --broker-id 7",
            "muster serve: --broker-id: muster's name for it is --node-id (MUSTER_NODE_ID)",
        ),
        (
            "serve --log-dirs x",
            "muster serve: --log-dirs: muster has one data directory: --data (MUSTER_DATA)",
        ),
        (
            "topics --bootstrap-server broker:9092 list",
            "muster topics: unknown option --bootstrap-server: options go after ACTION; "
            "muster topics --help lists them",
        ),
        (
            "--output=json groups list",
            "muster: unknown option --output: options go after COMMAND; muster --help lists them",
        ),
        ("--verson", "muster: unknown option --verson, did you mean --version? muster --help lists them"),
        (
            "test --http :8080 clock",
            "muster test: unknown option --http: options go after SUBJECT; muster test --help lists them",
        ),
        (
            "topics list --xyzzy",
            "muster topics list: unknown option --xyzzy; muster topics list --help lists them",
        ),
        (
            "produce t --acks alll",
            "muster produce: argument --acks: invalid choice: 'alll', did you mean all? "
            "(choose from all, 1, 0); muster produce --help says more",
        ),
        (
            "groups list --type clasic",
            "muster groups list: argument --type: 'clasic' is not allowed, did you mean classic? it takes "
            "classic, consumer, share, streams; muster groups list --help says more",
        ),
        (
            "topics list orders",
            "muster topics list: unexpected argument 'orders'; muster topics list --help says more",
        ),
        (
            "completion csh",
            "muster completion: argument SHELL: invalid choice: 'csh', did you mean zsh? (choose",
        ),
    ],
)
def test_what_was_meant(capfd: pytest.CaptureFixture[str], line: str, said: str) -> None:
    assert Muster("127.0.0.1:9", capfd).misused(*line.split()).startswith(said)

"""`muster test`, as a user runs it: on a server in test mode, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.coordinator import cli, test_mode_command
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse
from tests.cli.running import Ended, environment, run
from tests.server.security.conftest import Keys, keys
from tests.support.ports import free_ports
from tests.support.wire_blocking import WireConnection

__all__ = ["keys"]

BEAT = HeartbeatRequest(group_id="billing", generation_id=1, member_id="m")

Muster = Callable[..., Ended]


def serving(*options: str) -> Iterator[tuple[str, str]]:
    """`muster serve`: its bootstrap servers, and the HOST:PORT of its page."""
    command = [sys.executable, "-m", "muster", "serve", "--port", "0", "--ephemeral", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--log-level", "error", "--lease-term-ms", "30000", *options],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(""),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("muster ready on "), line
        yield line.split()[3], line.strip().rpartition("://")[2]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, str]]:
    yield from serving("--test-mode", "--brokers", "2")


@pytest.fixture
def muster(server: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> Iterator[Muster]:
    """Runs a command; the server's rules are taken back at the end."""
    asks = asking(server[1], capfd)
    yield asks
    asks("faults", "clear")


def asking(address: str, capfd: pytest.CaptureFixture[str]) -> Muster:
    def ask(*arguments: str, **variables: str) -> Ended:
        capfd.readouterr()
        try:
            code = cli.main(["test", *arguments], {"MUSTER_HTTP": address, **variables})
        except SystemExit as ended:  # as argparse ends
            code = int(ended.code or 0)
        return Ended(code, *capfd.readouterr())

    return ask


def beat(server: tuple[str, str]) -> int:
    host, _, port = server[0].split(",")[0].rpartition(":")
    with WireConnection(host, int(port), "app") as wire:
        return wire.call(BEAT, 4, HeartbeatResponse).error_code


def done(ended: Ended) -> Any:
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out)


def test_a_fault_from_its_rule_to_its_hits(server: tuple[str, str], muster: Muster) -> None:
    rule = done(
        muster(
            "faults",
            "add",
            "--api",
            "Heartbeat",
            "--client-id",
            "app",
            "--nth",
            "2",
            "--error",
            "UNKNOWN_SERVER_ERROR",
        )
    )
    assert (rule["api"], rule["nth"], rule["times"], rule["fired"]) == ("Heartbeat", 2, 1, 0)
    assert [beat(server) for _ in range(2)][1] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert done(muster("faults", "wait", str(rule["id"]), "--hits", "1", "--timeout", "60s"))["fired"] == 1
    listed = done(muster("faults", "list"))
    assert ([each["id"] for each in listed["rules"]], len(listed["history"])) == ([rule["id"]], 1)
    assert done(muster("faults", "remove", str(rule["id"])))["id"] == rule["id"]
    late = muster("faults", "wait", str(rule["id"]))
    assert (late.code, late.out) == (1, "")
    assert late.err == f"muster test faults wait: there is no rule {rule['id']}; existing rules: none\n"


def test_a_wait_may_take_longer_than_other_answers(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    given_s = []
    monkeypatch.setattr(test_mode_command, "_ask", lambda *asked: given_s.append(asked[-1]))
    for timeout in ("5m", "1000w"):
        assert muster("faults", "wait", "1", "--timeout", timeout).code == 0
    assert muster("faults", "list").code == 0
    monkeypatch.undo()
    answer_s = test_mode_command._ANSWER_S
    assert given_s == [answer_s + 300, answer_s + 3_600, answer_s]
    assert "timeout" in muster("faults", "wait", "1", "--timeout", "1000w").err


def test_every_action_of_a_rule(muster: Muster) -> None:
    for options, action in (
        (("--delay", "5s"), {"delay": "5000ms"}),
        (("--drop-response",), {"drop_response": True}),
        (("--close-before", "--forever"), {"close_before": True, "times": None}),
        (("--close-after", "--times", "3"), {"close_after": True, "times": 3}),
        (("--truncate", "0"), {"truncate": 0}),
    ):
        of_member = ("--group", "g", "--topic", "t", "--member", "m", "--broker", "1")
        matching = (*of_member, "--transactional-id", "etl-1", "--api", "TxnOffsetCommit")
        rule = done(muster("faults", "add", *matching, *options))
        named = {"group": "g", "topic": "t", "member": "m", "transactional_id": "etl-1", "broker": 1}
        assert rule.items() >= {**named, **action}.items()


def test_an_api_and_an_error_have_a_number_too(muster: Muster) -> None:
    for code, name in (("16", "NOT_COORDINATOR"), ("-1", "UNKNOWN_SERVER_ERROR")):
        rule = done(muster("faults", "add", "--api", "8", "--error", code))
        assert (rule["api"], rule["error"]) == ("OffsetCommit", name)


def test_markers_are_held_and_let_go(muster: Muster) -> None:
    assert done(muster("transaction", "hold", "a/b c", "--topic", "totals")) == {
        "transactional_id": "a/b c",
        "topic": "totals",
    }
    assert done(muster("transaction", "hold", "etl-1"))["topic"] is None
    assert len(done(muster("faults", "list"))["held_markers"]) == 2
    assert done(muster("transaction", "release", "a/b c")) == {"was_held": True}
    done(muster("faults", "clear"))
    assert done(muster("transaction", "release", "etl-1")) == {"was_held": False}


def test_time_passes(muster: Muster) -> None:
    before_ms = done(muster("clock", "show"))["now_ms"]
    after_ms = done(muster("clock", "advance", "7 days", "--expire-all"))["now_ms"]
    assert after_ms >= before_ms + 7 * 86_400_000


def test_brokers_and_groups(muster: Muster) -> None:
    assert [each["state"] for each in done(muster("broker", "list"))["brokers"]] == ["running", "running"]
    for action, state in (
        ("pause", "paused"),
        ("resume", "running"),
        ("stop", "down"),
        ("restart", "running"),
    ):
        assert done(muster("broker", action, "2"))["state"] == state
    for node in ("1", "2"):
        assert done(muster("group", "move", "a/b", "--to", node)) == {"broker": int(node)}
    shard = done(muster("group", "hold", "a/b", "--limit", "1h", "--reload"))["shard"]
    assert 0 <= shard < 50
    assert done(muster("group", "release", "a/b")) == {"was_held": True}
    assert done(muster("group", "unpin", "a/b")) == {"was_pinned": True}
    assert done(muster("broker", "kill", "2"))["state"] == "down"
    assert done(muster("broker", "restart", "2"))["state"] == "running"
    nobody = muster("group", "stall", "g", "m")
    assert (nobody.code, nobody.err) == (1, "muster test group stall: group 'g' has no member 'm'\n")
    assert done(muster("group", "unstall", "g", "m")) == {}


def test_what_is_asked_wrongly(muster: Muster) -> None:
    for arguments, code, said in (
        (
            ("faults", "add", "--api", "Heartbeet", "--close-after"),
            1,
            "api: 'Heartbeet' is not a served API",
        ),
        (("faults", "add", "--api", "999", "--close-after"), 1, "api: '999' is not a served API"),
        (("faults", "add", "--error", "0"), 1, "error: '0' is not a Kafka error code"),
        (("faults", "add"), 1, "action: a rule takes exactly one of error, delay"),
        (("clock", "advance", "soon"), 2, "argument DURATION: 'soon' is not a valid duration"),
        (("faults", "add", "--delay", "5"), 2, "argument --delay: '5' is not a valid duration"),
        (("faults", "wait", "1", "--timeout", ""), 2, "argument --timeout: '' is not a valid duration"),
        (("group", "hold", "g", "--limit=-1s"), 2, "argument --limit: '-1s' is not a valid duration"),
        (("broker", "kill", "7"), 1, "id: 7 is not a broker here; choose from 1, 2"),
        (("broker", "kill", "one"), 2, "argument NODE: 'one' is not allowed; it takes a whole number"),
        (("broker", "kill"), 2, "NODE"),
        (("group", "move", "\udcff", "--to", "1"), 2, "argument GROUP: '\\udcff' is not allowed; it takes"),
        (("faults", "add", "--topic", "\udcff"), 2, "argument --topic: '\\udcff' is not allowed; it takes"),
        (("clock", "show", "--http", "broker..example:80"), 2, "--http: 'broker..example:80' is not allowed"),
        (("clock", "show", "--http", f"{'x' * 64}:80"), 2, "it takes HOST:PORT"),
        (
            ("clock", "advance", "1s", "--http", "nowhere"),
            2,
            "--http: 'nowhere' is not allowed; it takes HOST:PORT",
        ),
        (("clock",), 2, "ACTION"),
    ):
        ended = muster(*arguments)
        assert (ended.code, ended.out) == (code, ""), arguments
        assert said in ended.err
        assert ended.err.startswith(f"muster test {' '.join(arguments[:2])}: ")
        assert ended.err.count("\n") == 1


def test_the_answer_is_json_in_any_locale(server: tuple[str, str], muster: Muster) -> None:
    group = "gr\u00fcppe"
    done(muster("faults", "add", "--group", group, "--error", "16"))
    ended = subprocess.run(
        [sys.executable, "-m", "muster", "test", "faults", "list", "--http", server[1]],
        capture_output=True,
        check=True,
        timeout=60,
        env=environment("") | {"PYTHONIOENCODING": "ascii"},
    )
    assert [each["group"] for each in json.loads(ended.stdout)["rules"]] == [group]


def test_nobody_named_and_nobody_there(capfd: pytest.CaptureFixture[str]) -> None:
    unnamed = asking("", capfd)("clock", "show")
    assert (unnamed.code, unnamed.out) == (2, "")
    assert "--http or MUSTER_HTTP must give the HOST:PORT of muster serve --test-mode --http" in unnamed.err
    address = f"127.0.0.1:{free_ports(1)}"
    away = asking(address, capfd)("clock", "show")
    assert (away.code, away.out) == (1, "")
    assert away.err.startswith(
        f"muster test clock show: cannot reach {address}: Connection refused (is muster"
    )
    wrong = asking("x", capfd)("clock", "show")
    assert wrong.err == (
        "muster test clock show: MUSTER_HTTP: 'x' is not allowed; it takes HOST:PORT or https://HOST:PORT\n"
    )


def test_a_server_that_is_not_in_test_mode(capfd: pytest.CaptureFixture[str]) -> None:
    for _, address in serving():
        ended = asking(address, capfd)("clock", "advance", "45s")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err == (
            "muster test clock advance: this broker is not in test mode: start it with "
            "muster serve --test-mode\n"
        )


# --- a login, and TLS ---------------------------------------------------------------------------------------


class Locked(NamedTuple):
    """A server that wants a token, over TLS."""

    address: str
    token: str
    ca: str


@pytest.fixture(scope="module")
def locked(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    token = tmp_path_factory.mktemp("locked") / "token"
    token.write_text("sesame\n")
    token.chmod(0o600)
    options = ("--http-token-file", str(token), "--http-ssl-keystore-location", str(keys.server.both))
    at_once = ("--connection-failed-authentication-delay-ms", "0")
    for _, address in serving("--test-mode", *options, *at_once):
        yield Locked(address, str(token), str(keys.authority.certificate))


SHOW = ("clock", "show")


def test_the_token_and_the_ca_are_options_and_variables(
    locked: Locked, capfd: pytest.CaptureFixture[str]
) -> None:
    https = f"https://{locked.address}"
    options = ("--token-file", locked.token, "--ca-file", locked.ca)
    variables = {"MUSTER_HTTP_TOKEN_FILE": locked.token, "MUSTER_HTTP_CA_FILE": locked.ca}
    for address in (https, locked.address):
        assert done(asking(address, capfd)(*SHOW, *options))["now_ms"] > 0
        assert done(asking(address, capfd)(*SHOW, **variables))["now_ms"] > 0
    other = dict.fromkeys(variables, "/nowhere")
    assert done(asking(https, capfd)(*SHOW, *options, **other))["now_ms"] > 0  # options win


def test_who_is_not_let_in_hears_what_to_give(
    locked: Locked, capfd: pytest.CaptureFixture[str], tmp_path: Path, keys: Keys
) -> None:
    https = f"https://{locked.address}"
    wrong, empty = tmp_path / "wrong", tmp_path / "empty"
    wrong.write_text("another\n")
    empty.write_text("\n")
    ca, token = ("--ca-file", locked.ca), ("--token-file", locked.token)
    for address, options, code, said in (
        (
            https,
            ca,
            1,
            f"{https} requires a login: give --token-file or MUSTER_HTTP_TOKEN_FILE the file that "
            "muster serve has as --http-token-file",
        ),
        (
            https,
            (*ca, "--token-file", str(wrong)),
            1,
            f"--token-file {wrong}: not the token of {https}, which is in its --http-token-file",
        ),
        (https, (*ca, "--token-file", str(empty)), 1, f"--token-file {empty}: it is empty"),
        (https, (*ca, "--token-file", "/none"), 1, "--token-file /none: no such file or directory"),
        (
            https,
            token,
            1,
            f"the certificate of {https} is refused: unable to get local issuer certificate; --ca-file names "
            "the CA to trust",
        ),
        (
            https,
            (*token, "--ca-file", locked.token),
            1,
            f"--ca-file {locked.token}: no PEM certificate is in it",
        ),
        (https, (*token, "--ca-file", "/none"), 1, "--ca-file /none: no such file or directory"),
        (
            f"http://{locked.address}",
            (*token, *ca),
            2,
            f"--ca-file: nothing is verified at http://{locked.address}; give https://HOST:PORT to "
            "MUSTER_HTTP",
        ),
        (
            locked.address,
            token,
            1,
            f"cannot reach {locked.address}: Remote end closed connection without response "
            "(if it has TLS, use https://HOST:PORT)",
        ),
        (
            f"https://me:sesame@{locked.address}",
            ca,
            2,
            "MUSTER_HTTP: it takes HOST:PORT or https://HOST:PORT, without a user",
        ),
    ):
        ended = asking(address, capfd)(*SHOW, *options)
        assert (ended.code, ended.out, ended.err) == (code, "", f"muster test clock show: {said}\n")


def test_tls_where_there_is_none(server: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    ended = asking(f"https://{server[1]}", capfd)(*SHOW)
    assert ended.code == 1
    assert f"https://{server[1]} does not speak TLS as it should: " in ended.err


def test_the_token_goes_nowhere_else(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A server that sends elsewhere is no broker, and may not have others get the token."""
    token = tmp_path / "token"
    token.write_text("sesame")
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        ended = asking(f"127.0.0.1:{other.server_port}", capfd)(*SHOW, "--token-file", str(token))
        other.shutdown()
        thread.join()
    assert ended.code == 1
    assert "is not muster's HTTP port" in ended.err
    assert asked == ["/test/clock"]


def test_something_else_that_speaks_http(capfd: pytest.CaptureFixture[str]) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>\x1b[31m")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        ended = asking(f"http://127.0.0.1:{other.server_port}/", capfd)("clock", "show")
        thread.join()
    assert ended.code == 1
    assert "is not muster's HTTP port: it responded '<html>\\\\x1b[31m'" in ended.err


def test_help_says_what_it_needs() -> None:
    for arguments in ((), ("clock",), ("faults", "add"), ("group", "hold")):
        ended = run("", "test", *arguments, "--help")
        assert ended.code == 0
        assert "muster serve --test-mode --http HOST:PORT" in ended.out
        assert "Exit codes:" in ended.out
    assert "\n    test " in run("", "--help").out

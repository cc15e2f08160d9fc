"""`muster test`: controls brokers in test mode over HTTP.

It does not speak the Kafka protocol, so it is not a client command. It needs only the standard library,
because it may run where the broker does not.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, RemoteDisconnected
from ssl import SSLCertVerificationError, SSLContext, SSLError, create_default_context
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
)

from muster.coordinator.arguments import EXIT_FAILED, EXIT_USAGE, Parser, fail, output_in_utf8, printable
from muster.coordinator.security.http_token import Token, TokenError

HTTP_VARIABLE: Final = "MUSTER_HTTP"
TOKEN_VARIABLE: Final = "MUSTER_HTTP_TOKEN_FILE"
CA_VARIABLE: Final = "MUSTER_HTTP_CA_FILE"
_ANSWER_S: Final = 90.0
"""How long the broker may take in addition to the wait it is asked for; advancing the clock may take 40 s."""
_WAIT_S_MAX: Final = 3_600.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_SHOWN_MAX: Final = 300

_ABOUT: Final = """\
For brokers started with muster serve --test-mode --http HOST:PORT. Every response is one line of JSON.
docs/faults.md in the project describes the HTTP API, for test suites in any language.

Exit codes: 0 done; 1 failed, the message says why; 2 wrong usage; 130 interrupted."""

_ADVANCE: Final = """\
Moves the time of groups, offsets, records and leases forward, from deadline to deadline, and returns when
everything that fell due has happened and is durable. Members that are connected and were not late stay alive
meanwhile, unless stalled.

DURATION is a number with a unit: 45s, 500ms, 1h30m, "7 days"."""

_ADD: Final = """\
A rule matches requests by all of --api, --group, --topic, --member, --transactional-id, --client-id and
--broker that are given. It first applies to the --nth matching request, and applies --times times. Its action
is exactly one of --error, --delay, --drop-response, --close-before, --close-after and --truncate. Prints the
rule."""

_WAIT: Final = """\
Returns once the rule has been applied this many times in total."""

_MOVE: Final = """\
Moves the group, and the others of its shard, to a broker, and keeps it there until `unpin` or until the
broker stops. Returns when clients are directed there."""

_HOLD: Final = """\
Holds the next load of the group's shard open until `release`, for at most --limit: clients get
COORDINATOR_LOAD_IN_PROGRESS. With --reload its coordinator reloads it now."""


_HOLD_MARKERS: Final = """\
Holds back the markers of this id's transactions until `release`: they are decided, and readers are not told.
Offsets are in the topic __consumer_offsets."""


class Failed(Exception):
    """The command failed; the text says why and what to do."""


Call = Callable[[Namespace], tuple[str, str, dict[str, Any] | None]]
"""The request to send: method, path below /test/, body."""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.\n\n{_ABOUT}"
    )
    kinds = parser.add_subparsers(dest="kind", metavar="SUBJECT", required=True)
    _declare_clock(_actions(kinds, "clock", "show and move the time"))
    _declare_faults(_actions(kinds, "faults", "inject errors, delays and lost connections"))
    _declare_brokers(_actions(kinds, "broker", "stop, kill, pause, resume and restart brokers"))
    _declare_groups(_actions(kinds, "group", "move groups, hold their loading, stall members"))
    _declare_transactions(_actions(kinds, "transaction", "hold markers of transactions"))


def _declare_clock(actions: Any) -> None:
    _command(actions, "show", "print the time", lambda given: ("GET", "clock", None))
    parser = _command(
        actions,
        "advance",
        "advance the time at once",
        lambda given: ("POST", "clock/advance", {"by": given.by, "expire_all": given.expire_all}),
        _ADVANCE,
    )
    parser.add_argument("by", metavar="DURATION", type=_duration, help="how far")
    parser.add_argument("--expire-all", action="store_true", help="do not keep any member alive meanwhile")


def _declare_faults(actions: Any) -> None:
    parser = _command(actions, "add", "add a rule", lambda given: ("POST", "faults", _rule(given)), _ADD)
    matching = parser.add_argument_group("which requests")
    matching.add_argument(
        "--api", metavar="NAME", help="the API, by Kafka's name or key, such as OffsetCommit"
    )
    matching.add_argument("--group", metavar="GROUP", type=_id, help="group id")
    matching.add_argument("--topic", metavar="TOPIC", type=_id, help="topic")
    matching.add_argument("--member", metavar="ID", type=_id, help="member id or group.instance.id")
    matching.add_argument("--transactional-id", metavar="ID", type=_id, help="transactional id")
    matching.add_argument("--client-id", metavar="ID", type=_id, help="client id")
    matching.add_argument(
        "--broker", metavar="NODE", type=_number, help="node id of the broker that gets the request"
    )
    matching.add_argument(
        "--nth", metavar="N", type=_number, help="first matching request to apply to (default 1)"
    )
    turns = matching.add_mutually_exclusive_group()
    turns.add_argument("--times", metavar="N", type=_number, help="how many times to apply (default 1)")
    turns.add_argument("--forever", action="store_true", help="apply to every further match")
    doing = parser.add_argument_group("what to do with them")
    doing.add_argument(
        "--error",
        metavar="CODE",
        help="respond with this error, by Kafka's name or number, such as NOT_COORDINATOR; apply nothing",
    )
    doing.add_argument(
        "--delay", metavar="DURATION", type=_duration, help="hold the request for this long, such as 5s"
    )
    doing.add_argument("--drop-response", action="store_true", help="apply, but never respond")
    doing.add_argument("--close-before", action="store_true", help="close the connection; apply nothing")
    doing.add_argument("--close-after", action="store_true", help="apply, then close instead of responding")
    doing.add_argument(
        "--truncate", metavar="BYTES", type=_number, help="apply, send this many bytes, then close"
    )
    _command(actions, "list", "print the rules and their hits", lambda given: ("GET", "faults", None))
    removing = _command(
        actions, "remove", "remove a rule", lambda given: ("DELETE", f"faults/{given.id}", None)
    )
    waiting = _command(actions, "wait", "wait for a fault", _wait_for_hits, _WAIT)
    for each in (removing, waiting):
        each.add_argument("id", metavar="ID", type=_number, help="the rule's id")
    waiting.add_argument("--hits", metavar="N", type=_number, default=1, help="number of hits (default 1)")
    waiting.add_argument(
        "--timeout", metavar="DURATION", type=_duration, default="30s", help="maximum wait (default 30s)"
    )
    _command(actions, "clear", "remove all rules", lambda given: ("DELETE", "faults", None))


def _rule(given: Namespace) -> dict[str, Any]:
    who = ("group", "topic", "member", "transactional_id", "client_id", "broker")
    names = ("api", *who, "nth", "times", "error", "delay", "truncate")
    rule = {name: getattr(given, name) for name in names}
    rule |= {name: getattr(given, name) or None for name in ("drop_response", "close_before", "close_after")}
    shown = {name: value for name, value in rule.items() if value is not None}
    return {**shown, "times": None} if given.forever else shown


def _wait_for_hits(given: Namespace) -> tuple[str, str, None]:
    asked = urlencode({"hit": given.hits, "timeout": given.timeout})
    return "GET", f"faults/{given.id}?{asked}", None


def _declare_brokers(actions: Any) -> None:
    _command(actions, "list", "print the brokers and their states", lambda given: ("GET", "brokers", None))
    for action, summary in (
        ("stop", "shut a broker down gracefully"),
        ("kill", "kill a broker: its leases expire"),
        ("pause", "freeze a broker, like SIGSTOP"),
        ("resume", "resume a paused broker"),
        ("restart", "restart a stopped or killed broker"),
    ):
        _command(actions, action, summary, _broker_action).add_argument(
            "node", metavar="NODE", type=_number, help="node id of the broker"
        )


def _broker_action(given: Namespace) -> tuple[str, str, dict[str, Any]]:
    return "POST", f"brokers/{given.node}/{given.action}", {}


def _declare_groups(actions: Any) -> None:
    moving = _command(actions, "move", "move a group to a broker", _group_action("to"), _MOVE)
    unpinning = _command(actions, "unpin", "undo `move`", _group_action())
    holding = _command(
        actions, "hold", "hold the loading of a group", _group_action("limit", "reload"), _HOLD
    )
    releasing = _command(actions, "release", "undo `hold`", _group_action())
    for each in (moving, unpinning, holding, releasing):
        each.add_argument("group", metavar="GROUP", type=_id, help="group id")
    moving.add_argument("--to", metavar="NODE", type=_number, required=True, help="node id of the broker")
    holding.add_argument("--limit", metavar="DURATION", type=_duration, help="maximum hold (default 60s)")
    holding.add_argument("--reload", action="store_true", help="reload the shard now")
    for action, summary in (
        ("stall", "let a member's session expire while time is advanced"),
        ("unstall", "undo `stall`"),
    ):
        parser = _command(actions, action, summary, _stall)
        parser.add_argument("group", metavar="GROUP", type=_id, help="group id")
        parser.add_argument("member", metavar="MEMBER", type=_id, help="member id or short name")


def _declare_transactions(actions: Any) -> None:
    holding = _command(actions, "hold", "hold markers back", _transaction_action("topic"), _HOLD_MARKERS)
    releasing = _command(actions, "release", "undo `hold`", _transaction_action())
    for each in (holding, releasing):
        each.add_argument("id", metavar="ID", type=_id, help="transactional id")
    holding.add_argument("--topic", metavar="TOPIC", type=_id, help="hold those for this topic alone")


def _transaction_action(*fields: str) -> Call:
    def call(given: Namespace) -> tuple[str, str, dict[str, Any]]:
        body = {name: getattr(given, name) for name in fields if getattr(given, name) is not None}
        return "POST", f"transactions/{quote(given.id, safe='')}/{given.action}", body

    return call


def _group_action(*fields: str) -> Call:
    def call(given: Namespace) -> tuple[str, str, dict[str, Any]]:
        body = {name: getattr(given, name) for name in fields if getattr(given, name) is not None}
        return "POST", f"groups/{quote(given.group, safe='')}/{given.action}", body

    return call


def _stall(given: Namespace) -> tuple[str, str, dict[str, Any]]:
    return "POST", str(given.action), {"group": given.group, "member": given.member}


def _actions(kinds: Any, name: str, summary: str) -> Any:
    parser: Parser = kinds.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.\n\n{_ABOUT}"
    )
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def _command(actions: Any, name: str, summary: str, call: Call, description: str = "") -> Parser:
    parts = (f"{summary[0].upper()}{summary[1:]}.", description, _ABOUT)
    parser: Parser = actions.add_parser(name, help=summary, description="\n\n".join(filter(None, parts)))
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help=f"HTTP address of the broker, with https:// if it has TLS (variable {HTTP_VARIABLE})",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"the broker's --http-token-file, if it has one (variable {TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        help="PEM file with the CAs that the broker's certificate is verified by, instead of the system's; "
        f"implies https:// (variable {CA_VARIABLE})",
    )
    parser.set_defaults(work=run, call=call, prog=parser.prog)
    return parser


def _id(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not allowed; it takes a name in UTF-8") from None
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not allowed; it takes a whole number")
    return int(text)


def _duration(text: str) -> str:
    """Check a duration; the broker gets it as written."""
    from muster import durations  # exact, with fractions and decimals: rarely needed

    try:
        durations.parse(text)
    except ValueError as error:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(str(error)) from None
    return text


# --- asking -------------------------------------------------------------------------------------------------


def run(given: Namespace, variables: Mapping[str, str]) -> int:
    """Send the request and print the response; returns the exit code."""
    try:
        server = _server(given, variables)
    except _Misused as error:
        return fail(given.prog, str(error), EXIT_USAGE)
    except Failed as error:
        return fail(given.prog, str(error), EXIT_FAILED)
    method, path, body = given.call(given)
    output_in_utf8()
    try:
        answer = _ask(server, method, path, body, _ANSWER_S + _wait_s(given))
        print(json.dumps(answer, ensure_ascii=False), flush=True)
    except Failed as error:
        return fail(given.prog, str(error), EXIT_FAILED)
    return 0


class _Misused(Exception):
    """An option or variable has an invalid value."""


@dataclass(frozen=True, slots=True)
class _Server:
    """The broker's HTTP port, and what it takes to get in."""

    address: str
    """As given."""
    base: str
    """`http://host:port`, or https."""
    token: Token | None
    token_from: str
    """The option or variable that named the token's file, and the file."""
    tls: SSLContext | None


def _server(given: Namespace, variables: Mapping[str, str]) -> _Server:
    """Raises _Misused and Failed."""

    def value(option: str, named: str | None, variable: str) -> tuple[str, str | None]:
        return (option, named) if named is not None else (variable, variables.get(variable) or None)

    option, address = value("--http", given.http, HTTP_VARIABLE)
    if not address:
        raise _Misused(
            f"--http or {HTTP_VARIABLE} must give the HOST:PORT of muster serve --test-mode --http"
        )
    ca_option, ca_file = value("--ca-file", given.ca_file, CA_VARIABLE)
    if "@" in address:  # it may contain a password, which must not be shown
        raise _Misused(f"{option}: it takes HOST:PORT or https://HOST:PORT, without a user")
    base = _base(address, secured=ca_file is not None)
    if base is None:
        raise _Misused(f"{option}: {address!r} is not allowed; it takes HOST:PORT or https://HOST:PORT")
    tls = None
    if base.startswith("https:"):
        tls = _context(ca_option, ca_file)
    elif given.ca_file is not None:
        raise _Misused(f"--ca-file: nothing is verified at {address}; give https://HOST:PORT to {option}")
    token_option, token_file = value("--token-file", given.token_file, TOKEN_VARIABLE)
    token = None
    if token_file is not None:
        try:
            token = Token.read(token_file)
        except TokenError as error:
            raise Failed(f"{token_option} {token_file}: {error}") from None
    return _Server(address, base, token, f"{token_option} {token_file}", tls)


def _base(address: str, *, secured: bool) -> str | None:
    """`http://host:port`, or None if it is not a valid address. `secured`: https unless it says otherwise."""
    url = address if "://" in address else f"{'https' if secured else 'http'}://{address}"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port is None or parts.path not in ("", "/"):
            return None
        parts.hostname.encode("idna")
    except ValueError:  # also UnicodeError: a label is empty or too long
        return None
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else None


def _context(option: str, ca_file: str | None) -> SSLContext:
    """Verifies the broker's certificate against the system's CAs, or against those in a file alone. Raises
    Failed."""
    try:
        return create_default_context(cafile=ca_file)
    except SSLError:
        raise Failed(f"{option} {ca_file}: no PEM certificate is in it") from None
    except OSError as error:
        raise Failed(f"{option} {ca_file}: {(error.strerror or str(error)).lower()}") from None


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects: the token is only for the server that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _wait_s(given: Namespace) -> float:
    """How long the broker is asked to wait. It refuses longer waits."""
    timeout = getattr(given, "timeout", None)
    if timeout is None:
        return 0.0
    from muster import durations  # exact, with fractions and decimals: rarely needed

    return min(durations.parse(timeout) / 1000, _WAIT_S_MAX)


def _ask(server: _Server, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if server.token is not None:
        headers["Authorization"] = server.token.authorization
    request = Request(f"{server.base}/test/{path}", data, headers, method=method)
    # A proxy from the environment cannot reach a broker on this machine.
    handlers: list[BaseHandler] = [ProxyHandler({}), _NoRedirects()]
    if server.tls is not None:
        handlers.append(HTTPSHandler(context=server.tls))
    try:
        with build_opener(*handlers).open(request, timeout=timeout_s) as response:
            return _read(response.read(_ANSWER_BYTES_MAX), server.address)
    except HTTPError as error:
        with error:
            answer = _read(error.read(_ANSWER_BYTES_MAX), server.address)
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise Failed(_not_let_in(server)) from None
        raise Failed(str(answer.get("error", answer)) if isinstance(answer, dict) else str(answer)) from None
    except (URLError, HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise Failed(_unreachable(server, why)) from None


def _not_let_in(server: _Server) -> str:
    if server.token is None:
        return (
            f"{server.address} requires a login: give --token-file or {TOKEN_VARIABLE} the file that "
            "muster serve has as --http-token-file"
        )
    return f"{server.token_from}: not the token of {server.address}, which is in its --http-token-file"


def _unreachable(server: _Server, why: object) -> str:
    if isinstance(why, SSLCertVerificationError):
        reason = why.verify_message or why.reason or "verification failed"
        return f"the certificate of {server.address} is refused: {reason}; --ca-file names the CA to trust"
    if isinstance(why, SSLError):
        return f"{server.address} does not speak TLS as it should: {(why.reason or str(why)).lower()}"
    text = getattr(why, "strerror", None) or str(why) or type(why).__name__
    hint = "is muster serve --test-mode --http running there? use --http for another address"
    if isinstance(why, RemoteDisconnected | ConnectionResetError) and server.tls is None:
        hint = "if it has TLS, use https://HOST:PORT"
    return f"cannot reach {server.address}: {text} ({hint})"


def _read(answer: bytes, address: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        shown = printable(answer[:_SHOWN_MAX].decode(errors="replace"))
        raise Failed(f"{address} is not muster's HTTP port: it responded {shown!r}") from None

"""`muster test`: drives brokers in test mode, over their HTTP.

It speaks no Kafka protocol, so it is none of the commands that are clients; and it needs nothing but Python,
since it may run where the broker does not.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from muster.coordinator.arguments import EXIT_FAILED, EXIT_USAGE, Parser, fail, printable

HTTP_VARIABLE: Final = "MUSTER_HTTP"
_ANSWER_S: Final = 90.0
"""How long the broker may take, beyond what it is asked to wait for; a move of the clock may take 40 s."""
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_SHOWN_MAX: Final = 300

_ABOUT: Final = """\
For brokers that were started with muster serve --test-mode --http HOST:PORT. Every answer is JSON, on one
line. docs/faults.md of the project describes the same over HTTP, for suites in any language.

Exit codes: 0 done; 1 could not be carried out, the message says why; 2 wrong usage; 130 interrupted."""

_ADVANCE: Final = """\
Moves the time of groups, offsets, records and leases forward, from deadline to deadline, and returns when all
that fell due has happened and is durable. Members whose connections are open and that were not late count as
alive meanwhile, but for those that are stalled.

DURATION is a number with a unit: 45s, 500ms, 1h30m, "7 days"."""

_ADD: Final = """\
A rule matches requests by all that is given of --api, --group, --topic, --member, --client-id and --broker.
Its first turn is the --nth request that it matches, and it has --times turns. It does exactly one of --error,
--delay, --drop-response, --close-before, --close-after and --truncate. Prints the rule with its id."""

_WAIT: Final = """\
Returns once the rule's fault has been carried out so often in all."""

_MOVE: Final = """\
Hands the group, and the others of its shard, over to a broker, which keeps it until `unpin` as long as it
runs. Returns when clients are sent there."""

_HOLD: Final = """\
Holds the next loading of the group's shard open until `release`, or for --limit at most: clients are told
COORDINATOR_LOAD_IN_PROGRESS. With --reload its coordinator loads it anew at once."""


class Failed(Exception):
    """The text says what did not work, and what to do."""


Call = Callable[[Namespace], tuple[str, str, dict[str, Any] | None]]
"""What to ask for: method, path below /test/, body."""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.\n\n{_ABOUT}"
    )
    kinds = parser.add_subparsers(dest="kind", metavar="SUBJECT", required=True)
    _declare_clock(_actions(kinds, "clock", "show and move the time"))
    _declare_faults(_actions(kinds, "faults", "errors, delays and lost connections at an exact point"))
    _declare_brokers(_actions(kinds, "broker", "stop, kill, pause, resume and restart brokers"))
    _declare_groups(_actions(kinds, "group", "move groups, hold their loading open, stall members"))


def _declare_clock(actions: Any) -> None:
    _command(actions, "show", "print the time", lambda given: ("GET", "clock", None))
    parser = _command(
        actions,
        "advance",
        "let time pass at once",
        lambda given: ("POST", "clock/advance", {"by": given.by, "expire_all": given.expire_all}),
        _ADVANCE,
    )
    parser.add_argument("by", metavar="DURATION", help="how far")
    parser.add_argument("--expire-all", action="store_true", help="no member counts as alive meanwhile")


def _declare_faults(actions: Any) -> None:
    parser = _command(
        actions, "add", "put a rule into force", lambda given: ("POST", "faults", _rule(given)), _ADD
    )
    matching = parser.add_argument_group("which requests")
    matching.add_argument("--api", metavar="NAME", help="Kafka's name of the API, such as OffsetCommit")
    matching.add_argument("--group", metavar="GROUP", help="group id")
    matching.add_argument("--topic", metavar="TOPIC", help="topic")
    matching.add_argument("--member", metavar="ID", help="member id or group.instance.id")
    matching.add_argument("--client-id", metavar="ID", help="client id")
    matching.add_argument("--broker", metavar="NODE", type=_number, help="node id of the broker asked")
    matching.add_argument("--nth", metavar="N", type=_number, help="first turn (default 1)")
    turns = matching.add_mutually_exclusive_group()
    turns.add_argument("--times", metavar="N", type=_number, help="how many turns (default 1)")
    turns.add_argument("--forever", action="store_true", help="as many turns as there are requests")
    doing = parser.add_argument_group("what happens to them")
    doing.add_argument("--error", metavar="CODE", help="answer this, such as NOT_COORDINATOR; apply nothing")
    doing.add_argument("--delay", metavar="DURATION", help="hold back for so long, such as 5s")
    doing.add_argument("--drop-response", action="store_true", help="apply, and answer nothing any more")
    doing.add_argument("--close-before", action="store_true", help="close the connection; apply nothing")
    doing.add_argument("--close-after", action="store_true", help="apply, and close in place of an answer")
    doing.add_argument("--truncate", metavar="BYTES", type=_number, help="apply, send so many bytes, close")
    _command(actions, "list", "print rules, and what they met", lambda given: ("GET", "faults", None))
    removing = _command(
        actions, "remove", "take a rule back", lambda given: ("DELETE", f"faults/{given.id}", None)
    )
    waiting = _command(actions, "wait", "wait for a fault", _wait_for_hits, _WAIT)
    for each in (removing, waiting):
        each.add_argument("id", metavar="ID", type=_number, help="the rule's id")
    waiting.add_argument("--hits", metavar="N", type=_number, default=1, help="how often (default 1)")
    waiting.add_argument("--timeout", metavar="DURATION", default="30s", help="at most (default 30s)")
    _command(actions, "clear", "take every rule back", lambda given: ("DELETE", "faults", None))


def _rule(given: Namespace) -> dict[str, Any]:
    names = ("api", "group", "topic", "member", "client_id", "broker", "nth", "times", "error", "delay")
    rule = {name: getattr(given, name) for name in (*names, "truncate")}
    rule |= {name: getattr(given, name) or None for name in ("drop_response", "close_before", "close_after")}
    shown = {name: value for name, value in rule.items() if value is not None}
    return {**shown, "times": None} if given.forever else shown


def _wait_for_hits(given: Namespace) -> tuple[str, str, None]:
    asked = urlencode({"hit": given.hits, "timeout": given.timeout})
    return "GET", f"faults/{given.id}?{asked}", None


def _declare_brokers(actions: Any) -> None:
    _command(actions, "list", "print the brokers and how they are", lambda given: ("GET", "brokers", None))
    for action, summary in (
        ("stop", "let a broker hand over and leave"),
        ("kill", "let a broker die: its leases run out"),
        ("pause", "let a broker stand still, as SIGSTOP does"),
        ("resume", "let a paused broker go on"),
        ("restart", "start a broker again that was stopped or killed"),
    ):
        _command(actions, action, summary, _broker_action).add_argument(
            "node", metavar="NODE", type=_number, help="node id of the broker"
        )


def _broker_action(given: Namespace) -> tuple[str, str, dict[str, Any]]:
    return "POST", f"brokers/{given.node}/{given.action}", {}


def _declare_groups(actions: Any) -> None:
    moving = _command(actions, "move", "have a broker coordinate a group", _group_action("to"), _MOVE)
    unpinning = _command(actions, "unpin", "take `move` back", _group_action())
    holding = _command(
        actions, "hold", "hold the loading of a group open", _group_action("limit", "reload"), _HOLD
    )
    releasing = _command(actions, "release", "take `hold` back", _group_action())
    for each in (moving, unpinning, holding, releasing):
        each.add_argument("group", metavar="GROUP", help="group id")
    moving.add_argument("--to", metavar="NODE", type=_number, required=True, help="node id of the broker")
    holding.add_argument("--limit", metavar="DURATION", help="at most (default 60s)")
    holding.add_argument("--reload", action="store_true", help="have it loaded anew now")
    for action, summary in (
        ("stall", "let a member count as dead while time is moved"),
        ("unstall", "take `stall` back"),
    ):
        parser = _command(actions, action, summary, _stall)
        parser.add_argument("group", metavar="GROUP", help="group id")
        parser.add_argument("member", metavar="MEMBER", help="member id or short name")


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
        help=f"where the broker serves HTTP (variable {HTTP_VARIABLE})",
    )
    parser.set_defaults(work=run, call=call, prog=parser.prog)
    return parser


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not allowed; it takes a whole number")
    return int(text)


# --- asking -------------------------------------------------------------------------------------------------


def run(given: Namespace, variables: Mapping[str, str]) -> int:
    """Ask the broker and print its answer; the exit code."""
    option, address = "--http", given.http
    if address is None:
        option, address = HTTP_VARIABLE, variables.get(HTTP_VARIABLE)
        if not address:
            why = f"--http or {HTTP_VARIABLE} has to name the HOST:PORT of muster serve --test-mode --http"
            return fail(given.prog, why, EXIT_USAGE)
    base = _base(address)
    if base is None:
        return fail(given.prog, f"{option}: {address!r} is not allowed; it takes HOST:PORT", EXIT_USAGE)
    method, path, body = given.call(given)
    try:
        print(json.dumps(_ask(base, address, method, path, body), ensure_ascii=False), flush=True)
    except Failed as error:
        return fail(given.prog, str(error), EXIT_FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _base(address: str) -> str | None:
    """`http://host:port`; None for what is no address."""
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None or parts.path not in ("", "/"):
            return None
    except ValueError:
        return None
    return f"http://{parts.netloc}"


def _ask(base: str, address: str, method: str, path: str, body: dict[str, Any] | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{base}/test/{path}", data, {"Content-Type": "application/json"}, method=method)
    # A proxy of the environment has no way to a broker on this machine.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=_ANSWER_S) as response:
            return _read(response.read(_ANSWER_BYTES_MAX), address)
    except HTTPError as error:
        with error:
            answer = _read(error.read(_ANSWER_BYTES_MAX), address)
        raise Failed(str(answer.get("error", answer)) if isinstance(answer, dict) else str(answer)) from None
    except (URLError, HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        text = getattr(why, "strerror", None) or str(why) or type(why).__name__
        raise Failed(
            f"{address} cannot be reached: {text} (does muster serve --test-mode --http run there? "
            "--http names another)"
        ) from None


def _read(answer: bytes, address: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        shown = printable(answer[:_SHOWN_MAX].decode(errors="replace"))
        raise Failed(f"{address} is no HTTP port of muster's: it answers {shown!r}") from None

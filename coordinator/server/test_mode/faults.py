"""Faults at an exact point: rules that say which request meets which fault, and the count of what they met.

A rule matches requests by API, group, topic, member, transactional id, client id and broker, waits for its
turn (from the nth match on, a number of times), and has one action. Rules are checked in the order in which
they were added. Each counts every request it matches; of those whose turn it is, the delays add up, and the
first of the others is carried out, while the rest keep their turn for the next request that they match.

`fault_gate` carries them out. As long as no rule has a turn left, it stands aside.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from muster.coordinator.peers.marker_holds import MarkerHolds
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis import APIS
from muster.coordinator.server.names import Name
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode

RULES_MAX: Final = 1_000
HISTORY_MAX: Final = 1_000
"""Firings that are remembered; the oldest are forgotten first."""
DELAY_MAX_MS: Final = 86_400_000
_COUNT_MAX: Final = 1_000_000_000
_TEXT_MAX: Final = 32_767
_CLOSE_MATCHES: Final = 3
_SHOWN_MAX: Final = 20

T = TypeVar("T")


class FaultError(ValueError):
    """A rule, or a question about rules, is invalid; the text names the field and says what it takes."""


class NotAsThingsAre(FaultError):
    """What is asked is valid, but not possible now: a broker does not run, say."""


class Kind(StrEnum):
    """What a rule does to a request."""

    ERROR = "error"
    """Answers with an error code where the API has a place for it; nothing is applied."""
    DELAY = "delay"
    """Holds the request back for so many milliseconds of the broker's clock before anything else happens to
    it."""
    DROP_RESPONSE = "drop_response"
    """Applies the request but never answers it, nor anything after it on its connection."""
    CLOSE_BEFORE = "close_before"
    """Closes the connection; nothing is applied."""
    CLOSE_AFTER = "close_after"
    """Applies the request and closes the connection instead of responding."""
    TRUNCATE = "truncate"
    """Applies the request, sends only the first bytes of the response (its size of four bytes counts) and
    closes the connection."""


class Action(NamedTuple):
    """`amount` is the error's code, the delay's milliseconds, or the number of bytes sent."""

    kind: Kind
    amount: int = 0

    def __str__(self) -> str:
        return str(self.kind) if self.shown is True else f"{self.kind} {self.shown}"

    @property
    def shown(self) -> object:
        """As `Rule.read` takes it."""
        match self.kind:
            case Kind.ERROR:
                return ErrorCode(self.amount).name
            case Kind.DELAY:
                return f"{self.amount}ms"
            case Kind.TRUNCATE:
                return self.amount
        return True


def error(code: ErrorCode) -> Action:
    return Action(Kind.ERROR, code)


def delay(ms: int) -> Action:
    return Action(Kind.DELAY, ms)


def truncate(count_bytes: int) -> Action:
    return Action(Kind.TRUNCATE, count_bytes)


DROP_RESPONSE: Final = Action(Kind.DROP_RESPONSE)
CLOSE_BEFORE: Final = Action(Kind.CLOSE_BEFORE)
CLOSE_AFTER: Final = Action(Kind.CLOSE_AFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which requests meet which fault. None matches everything; `read` checks what it is given."""

    action: Action
    api: ApiKey | None = None
    group: str | None = None
    topic: str | None = None
    member: str | None = None
    """A member id or a group instance id."""
    transactional_id: str | None = None
    client_id: str | None = None
    broker: int | None = None
    """A node id."""
    nth: int = 1
    """Its first turn: the nth request that it matches."""
    times: int | None = 1
    """Number of turns; None: unlimited."""

    @classmethod
    def read(cls, given: Mapping[str, object]) -> Rule:
        """A rule from the fields that people write: those of Rule, and instead of `action` one field named
        after its kind: `{"api": "OffsetCommit", "group": "billing", "nth": 2, "error": "NOT_COORDINATOR"}`.
        A field that is None counts as not given, except `times`. Raises FaultError.
        """
        unknown = [name for name in given if name not in FIELDS]
        if unknown:
            raise FaultError(f"{unknown[0]}: no such field{_perhaps(unknown[0], FIELDS)}")
        present = {name: value for name, value in given.items() if value is not None}
        action = _read_action(present)
        api = _read_api(present["api"]) if "api" in present else None
        for name in _NAMED:
            if name in present and api is not None:
                _check_names(api, name)
        times = None if given.get("times", 1) is None else read_count("times", present.get("times", 1))
        return cls(
            action=action,
            api=api,
            nth=read_count("nth", present.get("nth", 1)),
            times=times,
            broker=_number("broker", present["broker"], 0) if "broker" in present else None,
            **{name: _text(name, present[name]) for name in _TEXTS if name in present},
        )

    def to_json(self) -> dict[str, object]:
        """What `read` takes, without the fields that are not set."""
        shown: dict[str, object] = {
            "api": None if self.api is None else APIS[self.api].name,
            **{name: getattr(self, name) for name in (*_TEXTS, "broker")},
        }
        shown = {name: value for name, value in shown.items() if value is not None}
        return {**shown, "nth": self.nth, "times": self.times, self.action.kind.value: self.action.shown}


_NAMED: Final = ("group", "topic", "member", "transactional_id")
_TEXTS: Final = (*_NAMED, "client_id")
FIELDS: Final = (*(each.name for each in fields(Rule) if each.name != "action"), *Kind)
"""The fields that `Rule.read` knows."""


class About(NamedTuple):
    """A request, as rules see it."""

    broker: int
    api: Api
    version: int
    client_id: str
    request: Any
    topic_name: Callable[[UUID], str | None]
    """Maps a topic id to the topic's name."""

    def has(self, rule: Rule) -> bool:
        """Whether the rule matches the request."""
        return (
            rule.api in (None, self.api.key)
            and rule.broker in (None, self.broker)
            and rule.client_id in (None, self.client_id)
            and (rule.group is None or rule.group in self.api.names.groups_of(self.request))
            and (rule.member is None or rule.member in self.api.names.members_of(self.request))
            and (
                rule.transactional_id is None
                or rule.transactional_id in self.api.names.transactional_ids_of(self.request)
            )
            and (rule.topic is None or self.has_topic(rule.topic))
        )

    def has_topic(self, topic: str) -> bool:
        named = self.api.names.topics_of(self.version, self.request)
        return named is None or any(self.is_topic(each, topic) for each in named)

    def is_topic(self, named: Name | None, topic: str) -> bool:
        return topic == (self.topic_name(named) if isinstance(named, UUID) else named)


class Firing(NamedTuple):
    """A fault that a request met. `group`, `member` and `transactional_id` are the first that the request
    names, or None."""

    rule: int
    at_ms: int
    broker: int
    api: str
    version: int
    group: str | None
    member: str | None
    transactional_id: str | None
    client_id: str
    action: str

    def to_json(self) -> dict[str, object]:
        return self._asdict()


class RuleStatus(NamedTuple):
    """A rule and what it has met. `matched` counts requests until it has had its last turn, `fired` those
    that the fault was carried out on."""

    id: int
    rule: Rule
    matched: int
    fired: int

    def to_json(self) -> dict[str, object]:
        return {"id": self.id, **self.rule.to_json(), "matched": self.matched, "fired": self.fired}


class Fault:
    """A rule in force."""

    __slots__ = ("due", "fired", "id", "matched", "rule", "waiting")

    def __init__(self, number: int, rule: Rule) -> None:
        self.id = number
        self.rule = rule
        self.matched = 0
        self.due = 0
        """Turns taken; the fault itself may come later, as a parked JoinGroup's dropped response does."""
        self.fired = 0
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def action(self) -> Action:
        return self.rule.action

    @property
    def spent(self) -> bool:
        """Whether it has had all its turns."""
        return self.rule.times is not None and self.due >= self.rule.times

    @property
    def status(self) -> RuleStatus:
        return RuleStatus(self.id, self.rule, self.matched, self.fired)


class Faults:
    """The rules of the brokers of one process; each counts over all of them. Belongs to their event loop."""

    def __init__(self) -> None:
        self._rules: dict[int, Fault] = {}
        self._last_id = 0
        self._gates: list[Callable[[], None]] = []
        self._apis: frozenset[int] | None = frozenset()
        self.history: deque[Firing] = deque(maxlen=HISTORY_MAX)
        """Past firings, the oldest first."""
        self.marker_holds = MarkerHolds()
        """Transaction markers that are held back."""

    def __repr__(self) -> str:
        return f"<Faults {len(self._rules)} rules, {len(self.history)} fired>"

    # --- rules ----------------------------------------------------------------------------------------------

    def add(self, rule: Rule) -> int:
        """Put a rule into force, after the others; returns its id. Raises FaultError above RULES_MAX."""
        if len(self._rules) >= RULES_MAX:
            raise FaultError(f"there are already {RULES_MAX:,} rules, the most allowed: remove some")
        self._last_id += 1
        self._rules[self._last_id] = Fault(self._last_id, rule)
        self._changed()
        return self._last_id

    def remove(self, rule_id: int) -> None:
        """Remove a rule: requests that it holds back go on. Raises FaultError for an unknown rule."""
        self._end(self._rule(rule_id))
        self._changed()

    def clear(self) -> None:
        """Remove every rule, forget the history, and release the markers that are held back."""
        for each in list(self._rules.values()):
            self._end(each)
        self.history.clear()
        self.marker_holds.release_all()
        self._changed()

    def _end(self, fault: Fault) -> None:
        del self._rules[fault.id]
        for _, waiter in fault.waiting:
            if not waiter.done():
                waiter.set_exception(FaultError(f"rule {fault.id} was removed while a call waited for it"))

    def rules(self) -> list[RuleStatus]:
        """Every rule that is in force or spent, by id."""
        return [each.status for each in self._rules.values()]

    def status(self, rule_id: int) -> RuleStatus:
        """The rule and what it has met. Raises FaultError for an unknown rule."""
        return self._rule(rule_id).status

    def fired(self, rule_id: int) -> int:
        """How often the rule's fault was carried out. Raises FaultError for an unknown rule."""
        return self._rule(rule_id).fired

    async def hit(self, rule_id: int, times: int = 1) -> None:
        """Return once the rule's fault has been carried out `times` times in all. The caller bounds the wait.
        Raises FaultError for an unknown rule, one with fewer turns, or one that is removed meanwhile."""
        fault = self._rule(rule_id)
        if fault.rule.times is not None and times > fault.rule.times:
            raise FaultError(
                f"rule {rule_id} has times={fault.rule.times}: it is never applied {times} times"
            )
        if fault.fired >= times:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (times, waiter)
        fault.waiting.append(waiting)
        try:
            await waiter
        finally:
            with suppress(ValueError):
                fault.waiting.remove(waiting)

    def _rule(self, rule_id: int) -> Fault:
        fault = self._rules.get(rule_id)
        if fault is None:
            there = ", ".join(map(str, islice(self._rules, _SHOWN_MAX))) or "none"
            if len(self._rules) > _SHOWN_MAX:
                there += f" and {len(self._rules) - _SHOWN_MAX} more"
            raise FaultError(f"there is no rule {rule_id}; existing rules: {there}")
        return fault

    # --- for the gates --------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether any rule has a turn left."""
        return self._apis is None or bool(self._apis)

    def concern(self, api_key: int) -> bool:
        """Whether a rule with a turn left may match requests of this API."""
        return self._apis is None or api_key in self._apis

    def attach(self, changed: Callable[[], None]) -> None:
        """Call `changed` when `active` may have changed, or a rule was removed."""
        self._gates.append(changed)

    def detach(self, changed: Callable[[], None]) -> None:
        """Undo `attach`; harmless when repeated."""
        with suppress(ValueError):
            self._gates.remove(changed)

    def in_force(self, fault: Fault) -> bool:
        """Whether the rule has not been removed."""
        return fault.id in self._rules

    def meet(self, about: About, carries: Callable[[Rule], bool]) -> Sequence[Fault]:
        """The faults that a request meets: delays, and at most one other after them. `carries` says whether
        its answer has a place for the rule's error; a rule without one is skipped."""
        met: list[Fault] = []
        other: Fault | None = None
        for each in self._rules.values():
            if each.spent or not about.has(each.rule) or not carries(each.rule):
                continue
            each.matched += 1
            if each.matched < each.rule.nth:
                continue
            if each.action.kind is Kind.DELAY:
                met.append(each)
            elif other is None:
                other = each
            else:
                continue
            each.due += 1
        if other is not None:
            met.append(other)
        if any(each.spent for each in met):
            self._changed()
        return met

    def carried_out(self, fault: Fault, firing: Firing) -> None:
        """Count a fault that was carried out, and notify those who wait for it."""
        fault.fired += 1
        self.history.append(firing)
        for times, waiter in fault.waiting:
            if fault.fired >= times and not waiter.done():
                waiter.set_result(None)

    def _changed(self) -> None:
        apis = [each.rule.api for each in self._rules.values() if not each.spent]
        self._apis = None if None in apis else frozenset(int(api) for api in apis if api is not None)
        for changed in list(self._gates):
            changed()


# --- reading what people write ------------------------------------------------------------------------------


def _read_api(given: object) -> ApiKey:
    served = {api.name: api.key for api in APIS.values()}
    if (number := _as_number(given)) is not None:
        if number in APIS:
            return APIS[number].key
    elif isinstance(given, str):
        wanted = _plain(given).removesuffix("request")
        for name, key in served.items():
            if _plain(name) == wanted:
                return key
    raise FaultError(f"api: {_quoted(given)} is not a served API{_perhaps(given, served)}")


def _read_action(present: Mapping[str, object]) -> Action:
    # A flag that is false counts as not given.
    given = [kind for kind in Kind if present.get(kind, False) is not False]
    kinds = ", ".join(Kind)
    if len(given) != 1:
        named = ", ".join(given) if given else "none"
        raise FaultError(f"action: a rule takes exactly one of {kinds}; given: {named}")
    (kind,) = given
    value = present[kind]
    if kind is Kind.ERROR:
        return error(_read_code(value))
    if kind is Kind.DELAY:
        return delay(read_duration("delay", value, DELAY_MAX_MS))
    if kind is Kind.TRUNCATE:
        return truncate(_number("truncate", value, 0))
    if value is not True:
        raise FaultError(f"{kind}: {_quoted(value)} is not allowed; it takes true")
    return Action(kind)


def _read_code(given: object) -> ErrorCode:
    known = {code.name: code for code in ErrorCode if code is not ErrorCode.NONE}
    if (number := _as_number(given)) is not None:
        for code in known.values():
            if code == number:
                return code
    elif isinstance(given, str) and given.upper() in known:
        return known[given.upper()]
    raise FaultError(f"error: {_quoted(given)} is not a Kafka error code{_perhaps(given, known, show=False)}")


def _as_number(given: object) -> int | None:
    """What is given in place of a name; a command line has only text."""
    if isinstance(given, str) and re.fullmatch(r"-?[0-9]{1,5}", given):
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def read_duration(name: str, given: object, most_ms: int) -> int:
    """A duration as people write it, in milliseconds. Raises FaultError."""
    from muster import durations  # exact, by way of fractions and decimals: only in tests

    try:
        ms = durations.parse(given)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise FaultError(f"{name}: {error}") from None
    if not 0 <= ms <= most_ms:
        raise FaultError(f"{name}: {_quoted(given)} is not allowed; it takes up to {most_ms // 1000:,} s")
    return ms


def _check_names(api: ApiKey, name: str) -> None:
    """Raises FaultError for a rule that could never match."""
    if _names(APIS[api], name):
        return
    able = ", ".join(each.name for each in APIS.values() if _names(each, name))
    raise FaultError(f"{name}: {APIS[api].name} requests name no {name}; these do: {able}")


def _names(api: Api, name: str) -> bool:
    if name == "group":
        return api.names.names_groups
    if name == "transactional_id":
        return api.names.names_transactions
    return bool(api.names.topics) if name == "topic" else api.names.members


def read_count(name: str, given: object) -> int:
    """A number of requests, 1 or more. Raises FaultError."""
    return _number(name, given, 1)


def _number(name: str, given: object, low: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= _COUNT_MAX:
        raise FaultError(
            f"{name}: {_quoted(given)} is not allowed; it takes a whole number, {low} to {_COUNT_MAX:,}"
        )
    return given


def _text(name: str, given: object) -> str:
    if not isinstance(given, str) or len(given) > _TEXT_MAX:
        raise FaultError(f"{name}: {_quoted(given)} is not allowed; it takes text")
    return given


def _plain(name: str) -> str:
    return name.replace("_", "").replace(" ", "").lower()


def _quoted(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _perhaps(given: object, names: Iterable[str], *, show: bool = True) -> str:
    """A hint at what was meant, and what there is."""
    from difflib import get_close_matches  # rarely wanted

    by_plain = {_plain(name): name for name in names}
    close = get_close_matches(_plain(str(given)), by_plain, _CLOSE_MATCHES) if isinstance(given, str) else []
    meant = f" (did you mean {' or '.join(by_plain[each] for each in close)}?)" if close else ""
    return f"{meant}; choose from {', '.join(by_plain.values())}" if show else meant

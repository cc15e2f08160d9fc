"""Questions to other brokers and their answers: Kafka's own messages, sent as letters through the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.base.rate_limiter import RateLimiter
from muster.coordinator.peers.frame import Frame, Kind, decode_frame, decode_refusal, encode_refusal
from muster.coordinator.storage.store import (
    LETTER_BYTES_MAX,
    LETTERS_KEPT_BYTES_MAX,
    Lease,
    Letter,
    Posted,
    Store,
    StoreError,
)
from muster.protocol import api, codec
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, EncodeError, ErrorCode, KafkaError
from muster.protocol.message import Message

Serve = Callable[[ApiKey, int, Message], Awaitable[Message]]
"""Answers a request of another broker, in a version. A KafkaError is raised at the asker."""


class Ask(Protocol):
    """`Post.ask`, for its callers."""

    async def __call__(
        self,
        node_id: int,
        api_key: ApiKey,
        request: Message,
        *,
        timeout_ms: int,
        under: tuple[Lease, int] | None = None,
    ) -> Any:
        """See `Post.ask`."""


ASKED_MAX: Final = 1_000
"""Questions to other brokers that wait for answers; further ones are refused with
COORDINATOR_NOT_AVAILABLE. What a broker asks itself is bounded by its clients' requests in flight and the
markers of its own shards, which have their own limits."""
SERVED_MAX: Final = 256
"""Questions of other brokers that are being answered; further ones are refused with
COORDINATOR_NOT_AVAILABLE."""
ANSWERS_MAX: Final = 1_000
"""Answers that wait for the store; further ones are dropped, and their askers wait until the timeout."""
_WARNINGS_MAX: Final = 10
_WARNINGS_WITHIN_MS: Final = 60_000


class _Asked(NamedTuple):
    node_id: int
    api_key: ApiKey
    version: int
    answered: asyncio.Future[Message]


class Post:
    """Sends one broker's questions to others, and answers theirs. `start` once it may be asked; then `close`
    or `kill`, once. Belongs to the event loop it is used on.

    A question arrives at most once. An asker without an answer does not know whether it was carried out, so
    asking again must be harmless, and so must a question that arrives after its asker has given it up.
    """

    def __init__(self, store: Store, clock: Clock, *, node_id: int, incarnation: UUID, serve: Serve) -> None:
        """`clock` measures the timeouts. `serve` is called in a task of its own for each question."""
        self.node_id = node_id
        self._incarnation = incarnation
        self._store = store
        self._clock = clock
        self._serve = serve
        self._log = Logger(part="peers", node=node_id)
        self._warnings = RateLimiter(_WARNINGS_MAX, _WARNINGS_WITHIN_MS, keys_max=10)
        self._tickets = count(1)
        self._asked: dict[int, _Asked] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._serving: dict[asyncio.Task[None], int] = {}  # with who asked
        self._asked_here: dict[int, _Asked] = {}  # asked of this node itself
        self._serving_here: set[asyncio.Task[None]] = set()
        self._answers: list[Letter] = []
        self._answers_bytes = 0
        self._answering: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<Post of {self.node_id} asked={len(self._asked)} serving={len(self._serving)} "
            f"here={len(self._serving_here)}>"
        )

    def start(self) -> None:
        """Accept letters from now on. Raises StoreClosed."""
        self._store.open_mailbox(self.node_id, self._incarnation, self._on_letters)

    # --- asking -----------------------------------------------------------------------------------

    async def ask(
        self,
        node_id: int,
        api_key: ApiKey,
        request: Message,
        *,
        timeout_ms: int,
        version: int | None = None,
        under: tuple[Lease, int] | None = None,
    ) -> Message:
        """Return the answer of the node registered with this id; `version` is the latest unless given.

        The question is sent only while the epoch in `under` is the lease's present one. A question to this
        node itself bypasses the store and this check: what is written there is fenced anyway.

        Raises KafkaError with the code of a refusal, and its own: REQUEST_TIMED_OUT without an answer within
        `timeout_ms`, NOT_COORDINATOR when the epoch is over, MESSAGE_TOO_LARGE beyond LETTER_BYTES_MAX, and
        COORDINATOR_NOT_AVAILABLE when there is no such node, the store fails, too many questions are waiting
        already or this broker stops.
        """
        if self._closed:
            raise _unavailable("this broker is stopping")
        if node_id != self.node_id and len(self._asked) >= ASKED_MAX:
            raise _unavailable(f"{len(self._asked)} questions to brokers wait for answers already")
        if version is None:
            version = api.versions(api_key).last
        loop = asyncio.get_running_loop()
        ticket = next(self._tickets)
        asked = _Asked(node_id, api_key, version, loop.create_future())
        if node_id == self.node_id:
            self._asked_here[ticket] = asked
            here = loop.create_task(self._answer_here(asked, request), name=f"answer node {node_id}")
            self._serving_here.add(here)
            here.add_done_callback(self._serving_here.discard)
        else:
            frame = self._frame(Kind.QUESTION, ticket, api_key, version, codec.encode(request, version))
            letter = _letter(node_id, frame, under=under)
            self._asked[ticket] = asked
            sending = loop.create_task(self._send(asked, letter), name=f"ask node {node_id}")
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        timed_out = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"no answer from node {node_id} within {timeout_ms} ms"
        )
        timer = self._clock.at(self._clock.now_ms() + timeout_ms, lambda: _fail(asked, timed_out))
        try:
            return await asked.answered
        finally:
            timer.cancel()
            (self._asked_here if node_id == self.node_id else self._asked).pop(ticket, None)

    async def _send(self, asked: _Asked, letter: Letter) -> None:
        try:
            (posted,) = await self._store.post([letter])
        except StoreError as error:
            # It may have been sent anyway, and answered.
            _fail(asked, _unavailable(str(error)))
            return
        except Exception as error:
            self._log.error("failed to send a question to a broker", to=asked.node_id, exc_info=error)
            _fail(asked, _unavailable("the question could not be sent"))
            return
        if posted is Posted.FENCED:
            why = "the lease under which the broker asks has moved to another"
            _fail(asked, KafkaError(ErrorCode.NOT_COORDINATOR, why))
        elif posted is Posted.UNDELIVERABLE:
            _fail(asked, _unavailable(f"node {asked.node_id} takes no letters: it is gone, or overloaded"))

    async def _answer_here(self, asked: _Asked, request: Message) -> None:
        try:
            answer = await self._handled(asked.api_key, asked.version, request, self.node_id)
        except KafkaError as error:
            _fail(asked, error)
        else:
            if not asked.answered.done():
                asked.answered.set_result(answer)

    # --- letters ----------------------------------------------------------------------------------

    def _on_letters(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            try:
                frame = decode_frame(payload)
                if frame.kind is Kind.QUESTION:
                    self._on_question(frame)
                else:
                    self._on_answer(frame)
            except DecodeError as error:
                self._warn("dropped a damaged letter of another broker", why=str(error))

    def _on_question(self, frame: Frame) -> None:
        try:
            api_key = ApiKey(frame.api_key)
            request_class = api.request_class(api_key)
        except (ValueError, KeyError):
            self._refuse(frame, _unsupported(f"no API {frame.api_key} between brokers here"))
            return
        versions = api.versions(api_key)
        if frame.version not in versions:
            said = f"{api_key.name}: version {frame.version} asked for, versions {versions} known here"
            self._refuse(frame, _unsupported(said))
            return
        request = codec.decode(request_class, frame.version, frame.body)
        if len(self._serving) >= SERVED_MAX:
            why = f"node {self.node_id} is answering {len(self._serving)} questions already"
            self._refuse(frame, _unavailable(why))
            return
        answering = self._answer(frame, api_key, request)
        task = asyncio.get_running_loop().create_task(answering, name=f"answer node {frame.node_id}")
        self._serving[task] = frame.node_id
        task.add_done_callback(self._serving.pop)

    def _on_answer(self, frame: Frame) -> None:
        asked = self._asked.get(frame.ticket)
        if asked is None or asked.answered.done():
            return  # late: the asker has given it up
        if (frame.node_id, frame.api_key, frame.version) != (asked.node_id, asked.api_key, asked.version):
            raise DecodeError(f"the answer to question {frame.ticket} is none to what was asked")
        if frame.kind is Kind.REFUSAL:
            _fail(asked, decode_refusal(frame.body))
        else:
            response_class = api.response_class(asked.api_key)
            asked.answered.set_result(codec.decode(response_class, asked.version, frame.body))

    # --- answering --------------------------------------------------------------------------------

    async def _answer(self, frame: Frame, api_key: ApiKey, request: Message) -> None:
        try:
            answer = await self._handled(api_key, frame.version, request, frame.node_id)
            body = codec.encode(answer, frame.version)
            reply = self._frame(Kind.ANSWER, frame.ticket, api_key, frame.version, body)
            self._post_answer(_letter(frame.node_id, reply, frame.incarnation))
        except KafkaError as error:
            self._refuse(frame, error)
        except EncodeError as error:
            self._log.error("failed to encode an answer to a broker", api=api_key.name, exc_info=error)
            self._refuse(frame, self._failed(api_key))

    async def _handled(self, api_key: ApiKey, version: int, request: Message, asker: int) -> Message:
        """Return the answer of `serve`. Whatever happens, raises nothing but KafkaError."""
        try:
            return await self._serve(api_key, version, request)
        except KafkaError:
            raise
        except Exception as error:
            self._log.error("failed to answer a broker", api=api_key.name, asker=asker, exc_info=error)
            raise self._failed(api_key) from error

    def _failed(self, api_key: ApiKey) -> KafkaError:
        why = f"node {self.node_id} failed to answer {api_key.name}"
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, why)

    def _refuse(self, frame: Frame, error: KafkaError) -> None:
        body = encode_refusal(error)
        reply = self._frame(Kind.REFUSAL, frame.ticket, frame.api_key, frame.version, body)
        self._post_answer(_letter(frame.node_id, reply, frame.incarnation))

    def _post_answer(self, letter: Letter) -> None:
        if self._closed:
            return
        if len(self._answers) >= ANSWERS_MAX or self._answers_bytes >= LETTERS_KEPT_BYTES_MAX:
            self._warn("dropped an answer to another broker, too many wait for the store", to=letter.node_id)
            return
        self._answers.append(letter)
        self._answers_bytes += len(letter.payload)
        if self._answering is None:
            # It begins in the next turn, and takes along answers that this one adds.
            self._answering = asyncio.get_running_loop().create_task(
                self._post_answers(), name="answer brokers"
            )

    async def _post_answers(self) -> None:
        try:
            while self._answers:
                answers, self._answers, self._answers_bytes = self._answers, [], 0
                try:
                    await self._store.post(answers)  # nobody waits at nodes that are gone
                except StoreError as error:
                    self._warn("failed to answer other brokers", answers=len(answers), why=str(error))
                except Exception as error:
                    self._log.error("failed to answer other brokers", exc_info=error)
        finally:
            self._answering = None

    # --- the rest ---------------------------------------------------------------------------------

    def _frame(self, kind: Kind, ticket: int, api_key: int, version: int, body: bytes) -> Frame:
        return Frame(kind, self.node_id, self._incarnation, ticket, api_key, version, body)

    def _warn(self, event: str, **fields: object) -> None:
        if self._warnings.allows(event, self._clock.now_ms()):
            self._log.warning(event, **fields)

    def under_way(self, live: Collection[int]) -> Iterator[str]:
        """Describe the questions and answers under way, except for questions to nodes that are not `live`;
        yields nothing when all is at rest."""
        for asked in (*self._asked.values(), *self._asked_here.values()):
            if asked.node_id in live:
                yield f"node {asked.node_id} has not answered {asked.api_key.name} yet"
        serving = Counter(self._serving.values())
        if self._serving_here:
            serving[self.node_id] = len(self._serving_here)
        for asker, questions in serving.items():
            yield f"{questions} questions of node {asker} are still being answered"
        if self._answering is not None:
            yield "answers to other brokers are still being sent"

    async def close(self) -> None:
        """Accept no more letters, and end what is under way: open questions fail, and work on answers is
        cancelled. Answers that are ready are still sent."""
        self._end()
        for asked in (*self._asked.values(), *self._asked_here.values()):
            _fail(asked, _unavailable("this broker is stopping"))
        for task in (*self._sending, *self._serving, *self._serving_here):
            task.cancel()
        while tasks := {*self._sending, *self._serving, *self._serving_here, *self._answering_now()}:
            await asyncio.wait(tasks)

    def kill(self) -> None:
        """Die as a process does: nothing is sent or answered any more, and waiters here are cancelled."""
        self._end()
        for asked in (*self._asked.values(), *self._asked_here.values()):
            asked.answered.cancel()
        for task in (*self._sending, *self._serving, *self._serving_here, *self._answering_now()):
            task.cancel()

    def _answering_now(self) -> Iterator[asyncio.Task[None]]:
        if self._answering is not None:
            yield self._answering

    def _end(self) -> None:
        self._closed = True
        self._store.close_mailbox(self.node_id, self._incarnation)


def _letter(
    node_id: int,
    frame: Frame,
    incarnation: UUID | None = None,
    *,
    under: tuple[Lease, int] | None = None,
) -> Letter:
    """Make a letter. Raises KafkaError if it is too large."""
    payload = frame.encoded()
    if len(payload) > LETTER_BYTES_MAX:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{ApiKey(frame.api_key).name}: {len(payload)} bytes to another broker; "
            f"allowed are {LETTER_BYTES_MAX}",
        )
    return Letter(node_id, payload, incarnation, under)


def _fail(asked: _Asked, error: KafkaError) -> None:
    if not asked.answered.done():
        asked.answered.set_exception(error)
        asked.answered.exception()  # marked as retrieved: the caller may be gone


def _unavailable(why: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)


def _unsupported(why: str) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, why)

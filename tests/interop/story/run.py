"""All stories, three clients side by side; they share one broker of each kind, unless brokers are killed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Final, Self

from tests.interop.story.clients.base import StockClient
from tests.interop.story.story import Outcome, tell
from tests.interop.story.targets import FOR_ONE_STORY, KAFKA, Target, running

_SIDE_BY_SIDE: Final = 2


class Stories:
    """Starts playing the stories at once; `outcomes` has a future for each (client's name, target)."""

    def __init__(
        self, clients: Sequence[StockClient], targets: Sequence[str], *, whole_on_kafka: bool = True
    ) -> None:
        """Without `whole_on_kafka`, Apache Kafka only gets the admin calls, which are the reference."""
        self.outcomes: dict[tuple[str, str], Future[Outcome]] = {
            (client.name, target): Future() for client in clients for target in targets
        }
        self._clients = clients
        self._targets = targets
        self._whole_on_kafka = whole_on_kafka
        self._brokers = ExitStack()
        self._running: dict[str, Target] = {}
        self._starting = threading.Lock()
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="stories")

    def __enter__(self) -> Self:
        for client in self._clients:
            self._pool.submit(self._tell_all_of, client)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the brokers once the stories in progress are over; the others are not played."""
        self._pool.shutdown(cancel_futures=True)
        self._brokers.close()

    def _tell_all_of(self, client: StockClient) -> None:
        """One client's stories, Apache Kafka's first if included: its admin calls are the reference."""
        kafka: Outcome | None = None
        for name in self._targets:
            future = self.outcomes[client.name, name]
            try:
                client.prepare()
                with self._target(name) as target:
                    admin_alone = name == KAFKA and not self._whole_on_kafka
                    outcome = tell(client, target, kafka, admin_alone=admin_alone)
                if name == KAFKA:
                    kafka = outcome
            except Exception as error:  # a missing tool, or a broker that does not start
                outcome = Outcome(client.name, name, problems=[f"{type(error).__name__}: {error}"])
                outcome.details = traceback.format_exc()
            future.set_result(outcome)

    @contextmanager
    def _target(self, name: str) -> Iterator[Target]:
        with ExitStack() as own:
            with self._starting:  # ports are found and taken one at a time
                if name in FOR_ONE_STORY:
                    target = own.enter_context(running(name))
                elif name in self._running:
                    target = self._running[name]
                else:
                    target = self._running[name] = self._brokers.enter_context(running(name))
            yield target


def run_all(clients: Sequence[StockClient], targets: Sequence[str]) -> Iterator[Outcome]:
    """Yields each outcome as soon as it is available."""
    with Stories(clients, targets) as stories:
        for future in as_completed(stories.outcomes.values()):
            yield future.result()

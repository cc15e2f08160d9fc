"""Test a worker that dies, with a real broker and without waiting: plain pytest, and confluent-kafka.

    pip install . pytest confluent-kafka  # in a checkout; muster-kafka instead of ., once it is on PyPI
    pytest examples/test_rebalance_confluent.py

`Worker` stands for the code that you would test. The fixture `muster` comes with muster's pytest plugin. The
broker has its own thread, so a blocking client cannot hold it up.
"""

from threading import Event, Thread

from confluent_kafka import Consumer

from muster.coordinator.testing import Broker, FaultRule


class Worker:
    """Handles the records of `orders` as a member of `billing`."""

    def __init__(self, muster: Broker, name: str) -> None:
        self.handled: list[bytes] = []
        self._member = muster.group("billing").member(name)
        self._consumer = Consumer(
            {
                "bootstrap.servers": muster.bootstrap,
                "group.id": "billing",
                "client.id": name,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "heartbeat.interval.ms": 200,
                "log_level": 0,
            }
        )
        self._kept_away: FaultRule | None = None
        self._stopped = Event()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        self._consumer.subscribe(["orders"])
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and not message.error():
                self.handled.append(message.value())
        self._consumer.close()

    def crash(self) -> None:
        """Die without leaving the group. The client lives in the test's own process, so the broker cuts it
        off for good. Returns when the group has seen that."""
        self._kept_away = self._member.crash()

    def __enter__(self) -> "Worker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._kept_away is not None:
            self._kept_away.remove()  # or close() waits for a coordinator
        self._thread.join()


def test_crash_of_a_worker(muster):
    muster.create_topic("orders", partitions=6)
    group = muster.group("billing")
    with Worker(muster, "one") as one, Worker(muster, "two") as two:
        group.stable(members=2)  # a fact, not a sleep; on failure prints the timeline
        muster.produce("orders", [b"tea", b"milk"], partition=0)
        muster.produce("orders", [b"tea", b"milk"], partition=5)
        group.caught_up()
        two.crash()  # returns once the broker has seen the connection close
        muster.clock.advance("45s")  # takes no time; the heartbeats of one were on time, so it stays
        group.stable(members=1)
        assert group.why().cause == "session expired"
        assert [member.client_id for member in group.members] == ["one"]
        muster.produce("orders", [b"tea"], partition=0)
        muster.produce("orders", [b"tea"], partition=5)
        group.caught_up()
        assert len(one.handled) + len(two.handled) == 6


def test_a_member_that_is_evicted_comes_back(muster):
    muster.create_topic("orders", partitions=6)
    group = muster.group("billing")
    with Worker(muster, "one"):
        group.stable(members=1)
        before = group.generation
        group.evict("one", reason="to see whether it comes back")
        group.rebalanced(cause="member joined", after=before)
        group.stable(members=1)

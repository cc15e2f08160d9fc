"""The mock cluster of librdkafka as a server, `python -m tests.bench.peers.mock_cluster`: one broker.

It is the one that confluent-kafka's wheel has inside, called through its C interface, since Python has none
for it. Everything is in memory; a thread of librdkafka serves, the interpreter only waits for the end.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import signal
import sys
from pathlib import Path
from typing import Any, Final

_PRODUCER: Final = 0  # rd_kafka_type_t
_ERROR_BYTES: Final = 512


def library() -> Path:
    """The shared library inside the wheel."""
    found = importlib.util.find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise RuntimeError("confluent-kafka is not installed")
    beside = Path(found.origin).parent.with_name("confluent_kafka.libs")
    for path in sorted(beside.glob("librdkafka-*.so*")):
        return path
    raise RuntimeError(f"no librdkafka in {beside}")


def _functions() -> Any:
    # The wheel's own loader knows where the libraries are that this one needs.
    import confluent_kafka  # noqa: F401

    lib = ctypes.CDLL(str(library()))
    lib.rd_kafka_new.restype = ctypes.c_void_p
    lib.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    lib.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    lib.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    lib.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
    lib.rd_kafka_mock_topic_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    lib.rd_kafka_mock_group_initial_rebalance_delay_ms.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    return lib


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers.mock_cluster")
    parser.add_argument("--initial-delay-ms", type=int, default=3_000)
    parser.add_argument("--topic", action="append", default=[], metavar="NAME:PARTITIONS")
    options = parser.parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])  # also in its threads
    lib = _functions()
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    handle = lib.rd_kafka_new(_PRODUCER, None, error, _ERROR_BYTES)
    if not handle:
        raise RuntimeError(error.value.decode())
    cluster = lib.rd_kafka_mock_cluster_new(handle, 1)
    if not cluster:
        raise RuntimeError("rd_kafka_mock_cluster_new failed")
    lib.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, options.initial_delay_ms)
    for topic in options.topic:
        name, _, partitions = topic.rpartition(":")
        refused = lib.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
        if refused:
            raise RuntimeError(f"rd_kafka_mock_topic_create: {refused}")
    bootstraps = lib.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    print(f"ready on {bootstraps.partition(',')[0]}", flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])


if __name__ == "__main__":
    main(sys.argv[1:])

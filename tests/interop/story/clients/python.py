"""The clients that are Python packages: one module each in `tests/interop/programs/python`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from tests.interop.programs import python
from tests.interop.story.clients.program import ALL_CODECS, ProgramClient


@dataclass(frozen=True)
class PythonClient(ProgramClient):
    """Its name is that of its package."""

    module: str

    def version(self) -> str:
        return metadata.version(self.name)

    def command(self) -> list[str]:
        return [sys.executable, "-m", f"{python.__name__}.{self.module}"]


CONFLUENT: Final = PythonClient("confluent-kafka", ALL_CODECS, "confluent")
KAFKA_PYTHON: Final = PythonClient("kafka-python", ALL_CODECS, "kafka_python")
AIOKAFKA: Final = PythonClient("aiokafka", ALL_CODECS, "aiokafka")
MUSTER: Final = PythonClient("muster-kafka", ALL_CODECS, "muster")
"""Our own client, treated like stock clients."""

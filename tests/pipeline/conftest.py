"""What the tests of the pipeline share: a session for all of them, which takes seconds to begin, and a broker
for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.coordinator.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine. What it leaves lying about goes to a folder of the run."""
    from muster.pipeline.session import spark_session

    scratch: Path = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = _SETTINGS | {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    session = spark_session("tests of the pipeline", master="local[2]", settings=settings)
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started

"""Shared by the pipeline tests: one session for all of them, which takes seconds to start, and a broker for
each.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.coordinator.testing import Broker
from muster.pipeline.journal.build import build
from muster.pipeline.journal.tables import BRONZE
from tests.pipeline.driven import Journal
from tests.pipeline.generator import SEED, generate
from tests.support.java import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SPARK,
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.log.level": "ERROR",
}
_LONGEST = (
    "test_connector.py",
    "test_journal_stream.py",
    "test_ingest.py",
    "test_standalone.py",
    "test_examples.py",
    "test_kills.py",
    "test_exactly_once.py",
    "test_spark_source.py",
    "test_traps.py",
    "test_journal.py",
    "test_writing_on_spark.py",
    "test_report.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest of the files that two processes share first, so that neither is idle at the end."""
    places = {file: place for place, file in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine. The files it leaves behind go to a folder of the run."""
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


@pytest.fixture(scope="session")
def journal() -> Journal:
    """The journal of real groups on a bad day; its seed is printed."""
    return asyncio.run(generate(seed=SEED))


@pytest.fixture(scope="session")
def journal_lake(spark: SparkSession, journal: Journal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables of that journal, built once for all tests."""
    lake: Path = tmp_path_factory.mktemp("lake")
    build(spark.createDataFrame(journal.rows(), BRONZE.ddl), str(lake))
    return lake


@pytest.fixture
def broker() -> Iterator[Broker]:
    # Spark takes every core at times. A broker that stalls for longer than its lease loses its shards for a
    # moment, and refuses requests meanwhile.
    with Broker(lease_term_ms=60_000) as started:
        yield started

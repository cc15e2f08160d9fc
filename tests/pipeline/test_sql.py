"""The format in SQL: views keep its options, catalog tables do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = "OPTIONS ('kafka.bootstrap.servers' '127.0.0.1:9', subscribe 'orders')"
WAY_OUT = r"the catalog keeps no OPTIONS .* CREATE TEMPORARY VIEW \.\.\. USING muster OPTIONS"


def test_a_table_is_refused_with_the_way_that_works(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=f"CREATE TABLE: nothing could be read from it; {WAY_OUT}"):
        spark.sql(f"CREATE TABLE refused USING muster {OPTIONS}")
    assert not spark.catalog.tableExists("refused")


def test_a_table_with_columns_says_it_when_it_is_read(spark: SparkSession) -> None:
    """Spark does not call the format to create such a table."""
    spark.sql(f"CREATE TABLE with_columns (value BINARY) USING muster {OPTIONS}")
    try:
        with pytest.raises(PySparkException, match=f"option kafka.bootstrap.servers is missing: .*{WAY_OUT}"):
            spark.table("with_columns").count()
    finally:
        spark.sql("DROP TABLE with_columns")

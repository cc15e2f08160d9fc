"""Makes the format "muster" known to Spark, which looks for it in top-level modules named `pyspark_*`."""

from muster.pipeline.source import DefaultSource

__all__ = ["DefaultSource"]

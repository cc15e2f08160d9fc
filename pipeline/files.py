"""Folders of a lake, on any file system that Hadoop supports: local, HDFS, an object store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from muster.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPECIAL: Final = re.compile(r"[][{}*?\\]")


def literal(path: str) -> str:
    """The path for `spark.read`, which takes paths as patterns; writing does not, nor does `Files`."""
    return _SPECIAL.sub(r"\\\g<0>", path)


class Files:
    """The file system that `root` is on."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._path: Any = spark._jvm.org.apache.hadoop.fs.Path
        self._system: Any = self._path(root).getFileSystem(spark._jsc.hadoopConfiguration())

    def exists(self, path: str) -> bool:
        """Whether the file or folder exists."""
        return bool(self._system.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder; empty if it does not exist."""
        path = self._path(folder)
        return (
            [each.getPath().getName() for each in self._system.listStatus(path)]
            if self.exists(folder)
            else []
        )

    def has_data(self, folder: str) -> bool:
        """Whether a folder contains anything that table readers do not skip."""
        return any(not name.startswith(("_", ".")) for name in self.names(folder))

    def move(self, source: str, target: str) -> None:
        """Rename a folder, atomically if the file system supports that. Raises PipelineError if it fails."""
        goal = self._path(target)
        self._system.mkdirs(goal.getParent())
        if not self._system.rename(self._path(source), goal):
            raise PipelineError(f"{source} could not be renamed to {target}")

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents, if it exists."""
        self._system.delete(self._path(path), True)

"""Reading the tables of `muster-pipeline rebalances` from Parquet, with pyarrow alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.pipeline.errors import PipelineError
from muster.pipeline.journal.tables import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.compute as pc

_MAKE = "muster-pipeline rebalances --to {} makes them"


class Lake:
    """The folder that `muster-pipeline rebalances --to` wrote: a path, or a URI that pyarrow knows.

    Raises PipelineError, which names `--from`, if it is not such a folder.
    """

    def __init__(self, root: str) -> None:
        from pyarrow import fs

        self.root = root
        try:
            if re.match(r"[a-z][a-z0-9+.-]*://", root):
                self._files, self._path = fs.FileSystem.from_uri(root)
            else:
                self._files, self._path = fs.LocalFileSystem(), root.rstrip("/") or "/"
            found = self._files.get_file_info(self._path)
        except (OSError, ValueError) as error:
            raise PipelineError(f"--from: {root} cannot be read: {_first_line(error)}") from None
        if found.type == fs.FileType.NotFound:
            raise PipelineError(f"--from: there is no {root}; {_MAKE.format(root)}")
        if found.type != fs.FileType.Directory:
            raise PipelineError(f"--from: {root} is a file; it takes the folder of the tables")
        if not (self._has("silver") and self._has("gold")):
            raise PipelineError(self._what_else())

    def read(self, table: Table, columns: Sequence[str], where: pc.Expression | None = None) -> pd.DataFrame:
        """Columns of the rows for which `where` holds; strings as categories, integers that may be NULL as
        floats. Raises PipelineError if the table is missing or not as it should be."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        name = f"{table.layer}/{table.name}"
        if not self._has(name):
            raise PipelineError(f"--from: {self.root} has no {name}; {_MAKE.format(self.root)}")
        try:
            files = ds.dataset(f"{self._path}/{name}", filesystem=self._files, format="parquet")
            if not files.files:  # written without any rows
                import pandas as pd

                return pd.DataFrame({each: pd.Series(dtype="object") for each in columns})
            missing = [each for each in columns if each not in files.schema.names]
            if missing:
                raise PipelineError(
                    f"--from: {name} has no column {missing[0]}: another version wrote it; "
                    + _MAKE.format(self.root)
                )
            found = files.to_table(columns=list(columns), filter=where)
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(
                f"--from: {name} cannot be read; if it is being written just now, ask again later: "
                + _first_line(error)
            ) from None
        texts = [each.name for each in found.schema if pa.types.is_string(each.type)]
        return found.to_pandas(categories=texts, date_as_object=False)

    def _has(self, name: str) -> bool:
        from pyarrow import fs

        return bool(self._files.get_file_info(f"{self._path}/{name}").type == fs.FileType.Directory)

    def _what_else(self) -> str:
        for folder in ("topics-by-batch", "topics"):
            if self._has(folder):
                return (
                    f"--from: {self.root} has topics, as muster-pipeline ingest writes them, and no tables "
                    f"of rebalances; muster-pipeline rebalances --events {self.root}/{folder} --to "
                    f"{self.root} makes those, if __group_events is among the topics"
                )
        return f"--from: {self.root} has no tables of rebalances (silver/ and gold/); " + _MAKE.format(
            self.root
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

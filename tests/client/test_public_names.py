"""The names of `muster.client`: all of them exist, and none is imported before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import muster.client as client


def test_each_name_is_there_and_type_checkers_see_the_same() -> None:
    tree = ast.parse(Path(client.__file__).read_text())
    (checked,) = [each for each in tree.body if isinstance(each, ast.If)]
    seen = {
        alias.asname: each.module
        for each in checked.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert dir(client) == sorted(client.__all__) == sorted(seen)
    for name, home in seen.items():
        assert getattr(client, name) is getattr(sys.modules[str(home)], name)
    with pytest.raises(AttributeError, match="no attribute 'Consummer'"):
        _ = client.Consummer  # type: ignore[attr-defined]


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import sys, muster.client; print([each for each in sys.modules if 'muster.client.' in each])"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.strip() == "[]"

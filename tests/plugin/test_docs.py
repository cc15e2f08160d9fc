"""The tests in docs/testing.md, run as one file in their own pytest process."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from muster.coordinator import command_line
from muster.coordinator.config import read_settings
from muster.coordinator.testing import Cluster, Faults, Group, Member, Topic, Transaction
from tests.plugin.test_plugin import Run
from tests.support.each import each

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS.parent / "examples"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def test_every_test_of_the_page_passes(tmp_path: Path) -> None:
    (tmp_path / "rebalance.py").write_text((EXAMPLES / "test_rebalance.py").read_text())
    program = "from rebalance import worker\n\n" + "\n\n".join(blocks("testing.md"))
    run = Run(tmp_path, program, loops="asyncio")
    assert (run.code, run.outcomes) == (0, {"PASSED": len(re.findall(r"def test_", program))}), run.text


@each("plugin, passed", [("asyncio", 2), ("anyio", 3)])  # anyio: on asyncio and on trio
def test_what_the_page_says_async_tests_need_is_enough(plugin: str, passed: int, tmp_path: Path) -> None:
    page = (DOCS / "testing.md").read_text()
    (setting,) = re.findall(rf'{plugin}(?: \([^)]*\))? with `(\w+) = "auto"`', page)
    first = blocks("testing.md")[0]
    run = Run(tmp_path, first, "-o", f"{setting}=auto", loops=plugin)
    assert (run.code, run.outcomes) == (0, {"PASSED": passed}), run.text
    marked = first.replace("async def", f"@pytest.mark.{plugin}\nasync def")
    assert f"`@pytest.mark.{plugin}`" in page
    run = Run(tmp_path, f"import pytest\n\n{marked}", "-o", f"{setting}=strict", loops=plugin)
    assert (run.code, run.outcomes) == (0, {"PASSED": passed}), run.text


def test_what_the_page_says_of_waits_and_calls_is_there() -> None:
    page = (DOCS / "testing.md").read_text() + (DOCS / "from-testcontainers.md").read_text()
    of = {"group": Group, "member": Member, "topic": Topic, "cluster": Cluster, "muster_cluster": Cluster}
    of |= {"transaction": Transaction, "faults": Faults}
    named = re.findall(r"(group|member|topic|transaction)\([^()]+\)\.(\w+)\(", page)
    named += re.findall(r"\b(faults)\.(\w+)\(", page)
    named += re.findall(r"\b(cluster|muster_cluster)\.(\w+)\(", page)
    assert len(named) > 20
    for owner, call in named:
        assert hasattr(of[owner], call) or call == "member", f"{owner}.{call}"


def test_the_page_about_moving_over_has_python_that_parses() -> None:
    for block in blocks("from-testcontainers.md"):
        compile(block, "from-testcontainers.md", "exec")


@each("page, brokers", [("testing.md", 1), ("faults.md", 3)])
def test_a_broker_as_a_process_has_the_settings_of_one_in_a_test(page: str, brokers: int) -> None:
    (command,) = re.findall(r"^\$ muster (serve .*--test-mode.*)$", (DOCS / page).read_text(), re.MULTILINE)
    arguments = command.split()
    given = vars(command_line.parser({"serve"}, arguments).parse_args(arguments))
    del given["command"]
    in_test = Cluster(brokers)._core.settings
    assert replace(read_settings(given, {}), port=in_test.port, http=None) == in_test

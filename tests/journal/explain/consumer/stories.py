"""Stories of consumer groups in the transcript language, and what their journals say."""

from __future__ import annotations

import textwrap
from datetime import UTC
from pathlib import Path
from tempfile import TemporaryDirectory

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import Explanation, explain
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.ring import Journal
from tests.group.core_driver import CoreDriver
from tests.group.play import play
from tests.group.scenario import parse
from tests.support.journal import check_entry

HEADER = """\
config group.initial.rebalance.delay.ms 0
config group.consumer.assignment.interval.ms 0
"""


def told(story: str) -> list[Entry]:
    """Play a story and return its journal; responses are not checked."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "story.txt"
        path.write_text("# A story.\n\n" + HEADER + textwrap.dedent(story))
        scenario = parse(path)
        driver = CoreDriver(scenario)
        play(scenario, driver, topic_id=driver.topic_id)
    entries = Recorder(1, Journal()).of_events(3, driver.harness.take_events())
    for each in entries:
        check_entry(each)
    return entries


def why(story: str, *, after_ms: int = 0, generation: int | None = None) -> Explanation:
    """Explain the last rebalance, or that of a given generation, `after_ms` after the last entry."""
    entries = told(story)
    found = explain(entries, generation=generation, now_ms=entries[-1].at_ms + after_ms)
    assert found is not None, entries
    return found


def lines(story: str, *, after_ms: int = 0) -> list[str]:
    """The same as lines of text, without the header line."""
    return [each.strip() for each in why(story, after_ms=after_ms).lines(UTC)[1:]]

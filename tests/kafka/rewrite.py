"""Records the answers of muster's server to the stories of this folder: `python -m tests.kafka.rewrite`.

The stories of tests/group are recorded there (`--rewrite`); those here are about what the server does around
the core. Read the diff as prose.
"""

from __future__ import annotations

from tests.group.scenario import parse, rewritten
from tests.kafka.our_server import running_driver
from tests.kafka.recording import AROUND_THE_CORE, record


def main() -> None:
    for path in AROUND_THE_CORE:
        scenario = parse(path)
        with running_driver(scenario) as driver:
            replies = record(scenario, driver, topic_id=driver.topic_id)
        path.write_text(rewritten(scenario, [each.lines for each in replies]), encoding="utf-8")


if __name__ == "__main__":
    main()

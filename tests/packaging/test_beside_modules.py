"""muster as installed here, compiled or not, in a program whose own modules share the names of its
packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import muster
import muster.build

PACKAGES = ("client", "protocol", "coordinator", "pipeline")
PROGRAM = f"""
import asyncio
import {", ".join(PACKAGES)}
import muster.build, muster.client, muster.pipeline.cli
from muster.coordinator.testing import Broker

assert {{{", ".join(f"{name}.OWNER" for name in PACKAGES)}}} == {{"user"}}


async def main():
    async with Broker() as broker, muster.client.Admin(broker.bootstrap) as admin:
        await admin.create_topics([muster.client.NewTopic(name="orders", num_partitions=1)])
        names = [each.name for each in await admin.list_topics()]
        print(*names, muster.build.build(), muster.__file__)


asyncio.run(main())
"""


def test_a_broker_and_a_client_run_beside_a_users_own_modules(tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'user'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["orders", muster.build.build(), muster.__file__]

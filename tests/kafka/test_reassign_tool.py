"""Kafka's own command line tools against several brokers: they show and change replica lists."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from muster.coordinator.testing import Cluster
from tests.support.java import java
from tests.support.kafka_artifacts import tools_classpath

pytestmark = pytest.mark.kafka

_PACKAGE = "org.apache.kafka.tools"


def test_partitions_are_reassigned_by_kafkas_tool(tmp_path: Path) -> None:
    classpath = tools_classpath()
    plan = tmp_path / "plan.json"

    def tool(name: str, *options: str) -> str:
        command = [*java(classpath), f"{_PACKAGE}.{name}", "--bootstrap-server", cluster.bootstrap]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def reassign(action: str, file: Path) -> str:
        return tool("reassign.ReassignPartitionsCommand", action, "--reassignment-json-file", str(file))

    def described() -> list[str]:
        lines = tool("TopicCommand", "--describe", "--topic", "t").splitlines()
        return [line.partition("Leader: ")[2].partition("\tElr")[0] for line in lines if "Leader: " in line]

    with Cluster(3, lease_term_ms=30_000) as cluster:
        tool("TopicCommand", "--create", "--topic", "t", "--replica-assignment", "3:1,2:3")
        assert described() == ["3\tReplicas: 3,1\tIsr: 3,1", "2\tReplicas: 2,3\tIsr: 2,3"]
        lists = {0: [1, 2], 1: [3, 1, 2]}
        partitions = [{"topic": "t", "partition": each, "replicas": to} for each, to in lists.items()]
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
        executed = reassign("--execute", plan)
        assert "Successfully started partition reassignments for t-0,t-1" in executed
        verified = reassign("--verify", plan)
        assert "Reassignment of partition t-0 is completed." in verified
        assert "Reassignment of partition t-1 is completed." in verified
        listed = tool("reassign.ReassignPartitionsCommand", "--list")
        assert "No partition reassignments found." in listed
        assert "None of the specified partition reassignments are active." in reassign("--cancel", plan)
        assert described() == ["1\tReplicas: 1,2\tIsr: 1,2", "3\tReplicas: 3,1,2\tIsr: 3,1,2"]

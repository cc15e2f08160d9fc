"""Any bytes give a message or a DecodeError, and soon. Runs a small part of `make fuzz` and checks that it
would notice a fault.

A failure names the seed and the input; `python -m tests.fuzz --seed 4711 --input 123` reproduces it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from muster.protocol import api, codec, reference
from muster.protocol.constructs import UnsignedVarint
from muster.protocol.errors import DecodeError
from muster.protocol.messages.classic_group import HeartbeatRequest
from tests.fuzz.inputs import KINDS, Input, Inputs
from tests.fuzz.judge import ELEMENTS_MAX, TWIN_EVERY, Wrong, judge
from tests.fuzz.run import ALWAYS_REFUSED, Failed, run, try_one
from tests.protocol.sampling import SEED

INPUTS = dict.fromkeys(KINDS, 600) | {"deep": 12, "bomb": 4}


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    print(f"MUSTER_TEST_SEED={SEED}")
    return Inputs(SEED)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_messages_or_decode_errors(inputs: Inputs, kind: str) -> None:
    outcomes: Counter[bool] = Counter()
    for number in range(INPUTS[kind]):
        given = inputs.make(number, {kind: 1})
        try:
            outcomes[judge(given, number)] += 1
        except Wrong as wrong:
            pytest.fail(f"MUSTER_TEST_SEED={SEED}, {kind} {number} ({given}): {wrong}\n{given.data.hex()}")
    assert outcomes[False]
    if kind not in ("deep", *ALWAYS_REFUSED):
        assert outcomes[True]


def test_several_processes_share_the_inputs() -> None:
    result = run(SEED, 2_000, 2)
    assert sum(result.tally.values()) == 2_000
    assert result.memory_bytes > 0


def test_the_corpus_is_what_the_codec_writes(inputs: Inputs) -> None:
    for valid in (*inputs.requests, *inputs.responses, *inputs.records):
        data, at = valid.marked.data, valid.body_at
        message = codec.decode(valid.cls, valid.version, data, at)
        assert codec.encode(message, valid.version) == data[at:]
        for mark in valid.marked.marks:
            assert mark.written(mark.number) == data[mark.at : mark.at + mark.width]


def test_every_api_and_version_is_in_the_corpus(inputs: Inputs) -> None:
    for corpus in (inputs.requests, inputs.responses):
        there = {(valid.cls.__schema__.api_key, valid.version) for valid in corpus}
        for key in api.declared_apis():
            first, last = api.versions(key)
            assert {(key, version) for version in range(first, last + 1)} <= there


def test_an_input_is_the_same_whatever_came_before_it(inputs: Inputs) -> None:
    again = Inputs(SEED)
    for number in random.Random(SEED).sample(range(1_000_000), 200):
        assert again.make(number) == inputs.make(number)
    assert Inputs(SEED + 1).make(1) != inputs.make(1)


# --- that it would notice a fault ---


def beat(number: int = 1) -> tuple[Input, int]:
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    frame = b"\x00\x0c\x00\x03\x00\x00\x00\x07\xff\xff" + codec.encode(message, 3)
    return Input("request", HeartbeatRequest, 3, frame), number


def test_another_exception_than_decode_error_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(*beat())

    def broken(*_: Any) -> Any:
        raise IndexError("behind the end")

    monkeypatch.setattr(codec, "decode_prefix", broken)
    with pytest.raises(Wrong, match="IndexError: behind the end"):
        judge(*beat())


def test_twins_that_disagree_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(*beat(TWIN_EVERY))

    def refusing(*_: Any) -> Any:
        raise DecodeError("not today")

    monkeypatch.setattr(reference, "decode_prefix", refusing)
    with pytest.raises(Wrong, match="codec and reference disagree"):
        judge(*beat(TWIN_EVERY))


def test_a_failure_says_how_to_repeat_it(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.judge.CPU_SECONDS_MAX", -1.0)
    with pytest.raises(Failed, match=f"took .* of the processor[^$]*--seed {SEED} --input 5"):
        try_one(inputs, 5)


def test_memory_is_limited() -> None:
    taking = "from tests.fuzz.run import limit_memory as limit; limit(64 << 20); bytearray(128 << 20)"
    ended = subprocess.run([sys.executable, "-c", taking], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith("MemoryError\n"), os.strerror(ended.returncode)


def test_more_elements_than_accepted_are_refused_before_any_is_made() -> None:
    """The most objects that bytes can ask for: a topic in a Metadata v9 request takes two bytes."""
    count = 200_000
    body = UnsignedVarint().build(count + 1) + b"\x01\x00" * count + bytes(4)
    cls = api.request_class(api.ApiKey.METADATA)
    assert len(codec.decode(cls, 9, body).topics) == count  # type: ignore[attr-defined]
    with pytest.raises(DecodeError, match="more elements"):
        codec.decode_prefix(cls, 9, body, 0, ELEMENTS_MAX)

"""Reports which branches the inputs reach: coverage.py in branch mode, over a smaller run.

It covers protocol/ and the server code that bytes pass through on their way to a handler. Every compiled
decoder is measured too, as a file of its own. This module must be the first to import muster.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import coverage

_PATHS: Final = (
    "*/protocol/*.py",
    "*/coordinator/server/connection.py",
    "*/coordinator/server/session.py",
    "*/coordinator/server/wire.py",
    "*/coordinator/topics/validation.py",
)
_CONNECTIONS: Final = 300
_DECODERS: Final = "decoders"


def print_reach(seed: int, count: int) -> None:
    """Judge `count` inputs, attack a broker in this process, and print what was reached."""
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as directory:
        decoders = Path(directory) / _DECODERS
        decoders.mkdir()
        measuring = coverage.Coverage(
            branch=True,
            data_file=None,
            config_file=False,
            include=[*_PATHS, f"{decoders}/*"],
            omit=["*/tests/*"],
        )
        measuring.start()
        try:
            _decoders_to_files(decoders)
            _judge(seed, count)
            asyncio.run(_attack(seed))
        finally:
            measuring.stop()
        told = Path(directory) / "reach.json"
        measuring.json_report(outfile=str(told))
        _print(json.loads(told.read_text())["files"], count)


def _decoders_to_files(directory: Path) -> None:
    """Compile every decoder from a file, so that its branches can be distinguished."""
    from muster.protocol import compiler

    def compiled(generated: Any, cls: Any, version: int, name: str) -> Any:
        path = directory / f"{name}_{cls.__name__}_v{version}.py"
        path.write_text(generated.text())
        scope = dict(generated.scope)
        where = str(path) if name == "decode" else "<encode>"
        exec(compile(generated.text(), where, "exec"), scope)
        if name != "decode":
            path.unlink()
        return scope[name]

    compiler._compile = compiled


def _judge(seed: int, count: int) -> None:
    from tests.fuzz.inputs import Inputs
    from tests.fuzz.run import try_one

    inputs = Inputs(seed)
    for number in range(count):
        try_one(inputs, number)


async def _attack(seed: int) -> None:
    from muster.coordinator.config import Settings
    from muster.coordinator.server.brokers import Brokers
    from tests.fuzz.attack import attack

    brokers = Brokers(Settings(port=0, ephemeral=True, log_level="error"))
    await brokers.start()
    try:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        arguments = (brokers.brokers[0].port, seed, range(_CONNECTIONS), theirs)
        worker = context.Process(target=attack, args=arguments)
        worker.start()
        await asyncio.to_thread(ours.recv)
        await asyncio.to_thread(worker.join)
    finally:
        await brokers.stop()


def _print(files: dict[str, Any], count: int) -> None:
    groups: dict[str, list[int]] = {}
    for path, told in sorted(files.items()):
        name = _DECODERS if _DECODERS in Path(path).parts else path
        reached = groups.setdefault(name, [0, 0])
        reached[0] += told["summary"]["covered_branches"]
        reached[1] += told["summary"]["num_branches"]
    print(f"branches reached by {count:,} inputs and {_CONNECTIONS} connections")
    for name, (reached_, whole) in groups.items():
        shown = "the compiled decoders" if name == _DECODERS else name
        if whole:
            print(f"{reached_:6} of {whole:6}  {100 * reached_ / whole:5.1f} %  {shown}")
    print("\nbranches not reached; of the compiled decoders, how many of each condition")
    conditions: Counter[str] = Counter()
    for path, told in sorted(files.items()):
        lines = Path(path).read_text().splitlines()
        for begin, end in told["missing_branches"]:
            condition = lines[begin - 1].strip()
            # A negative end is the exit of the function or comprehension that begins there.
            taken = "true" if end == begin + 1 else f"to line {end}" if end > 0 else "to its end"
            if _DECODERS in Path(path).parts:
                conditions[f"{condition} {'true' if taken == 'true' else 'false'}"] += 1
            else:
                print(f"{path}:{begin} {taken}: {condition}")
    for condition, times in conditions.most_common():
        print(f"{times:6}  {condition}")

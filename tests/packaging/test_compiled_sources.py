"""Compiled modules contain nothing that mypyc treats differently from Python or refuses only at run time.

Each rule is a fault met once; ARCHITECTURE.md ("Compiled") explains them.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.protocol import building, built

ROOT = Path(__file__).parents[2]


def patterns() -> list[str]:
    """The patterns of compiled modules in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    libraries = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["compiled"]
    return [pattern for of_library in libraries.values() for pattern in of_library]


def compiled() -> list[Path]:
    """The source files that match them, without `__init__.py`."""
    found = [path for pattern in patterns() for path in sorted(ROOT.glob(pattern))]
    return [path for path in found if path.name != "__init__.py"]


def faults(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _caught_twice(node)
        elif isinstance(node, ast.Subscript):
            yield from _moved_within(node)
        elif isinstance(node, ast.ClassDef):
            yield from _told_before(node, tree)
        elif isinstance(node, ast.For):
            yield from _ends_elsewhere(node)


def _caught_twice(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """One name for exceptions of different types: mypyc gives it the type of the first."""
    types: dict[str, set[str]] = defaultdict(set)
    for node in _own(function):
        if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
            types[node.name].add(ast.unparse(node.type))
    for name, several in types.items():
        if len(several) > 1:
            yield f"line {function.lineno}: {function.name} catches {sorted(several)} as {name!r}"


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions nested in it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own(child)


def _moved_within(subscript: ast.Subscript) -> Iterator[str]:
    """`data[at : (at := at + size)]`: `at` is read after it has moved."""
    if isinstance(subscript.slice, ast.Slice) and isinstance(subscript.slice.lower, ast.Name):
        named = subscript.slice.lower.id
        for node in ast.walk(subscript.slice):
            if isinstance(node, ast.NamedExpr) and node.target.id == named:
                yield f"line {subscript.lineno}: {named!r} is moved within the slice that it begins"


def _told_before(cls: ast.ClassDef, module: ast.Module) -> Iterator[str]:
    """A NamedTuple field whose class is defined later in the file, which crashes, or is `object`."""
    if not any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in cls.bases):
        return
    later = {each.name for each in module.body if isinstance(each, ast.ClassDef) and each.lineno > cls.lineno}
    for statement in cls.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.annotation, ast.Name):
            name = statement.annotation.id
            if name in later or name == "object":
                yield f"line {statement.lineno}: a field of {cls.name} is a {name}"


def _ends_elsewhere(loop: ast.For) -> Iterator[str]:
    """`for _ in range(count)` that sets `count`: the loop ends at the new value."""
    if not isinstance(loop.iter, ast.Call) or ast.unparse(loop.iter.func) != "range":
        return
    end = loop.iter.args[0] if len(loop.iter.args) == 1 else loop.iter.args[1]
    for node in (node for statement in loop.body for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == ast.unparse(end):
            yield f"line {loop.lineno}: {node.id!r} is set within the loop that it ends"


def test_compiled_modules_hold_to_what_mypyc_reads_as_python_does() -> None:
    paths = compiled()
    assert len(paths) > 80
    found = [f"{path.relative_to(ROOT)}: {fault}" for path in paths for fault in faults(path.read_text())]
    assert not found


def test_generated_codecs_hold_to_it_too(tmp_path: Path) -> None:
    building.write(tmp_path / "generated")
    paths = sorted((tmp_path / "generated").glob("*.py"))
    assert len(paths) > 15
    assert not [f"{path.name}: {fault}" for path in paths for fault in faults(path.read_text())]


def test_generated_codecs_are_looked_for_where_the_build_writes_them() -> None:
    folder = built._GENERATED.split(".")
    assert f"{'/'.join(folder)}/*.py" in patterns()
    in_the_hook = ", ".join(f'"{name}"' for name in folder)
    assert f"GENERATED = Path({in_the_hook})" in (ROOT / "hatch_build.py").read_text()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "def f():\n try: g()\n except A as error: h(error)\n except B as error: h(error)",
            "line 1: f catches ['A', 'B'] as 'error'",
        ),
        ("x = data[at : (at := at + 2)]", "line 1: 'at' is moved within the slice that it begins"),
        ("class A(NamedTuple):\n b: B\nclass B: pass", "line 2: a field of A is a B"),
        ("class A(NamedTuple):\n b: object", "line 2: a field of A is a object"),
        ("for _ in range(n):\n n, at = f(at)", "line 1: 'n' is set within the loop that it ends"),
    ],
)
def test_each_fault_is_found(source: str, said: str) -> None:
    assert list(faults(source)) == [said]
    assert not list(
        faults("def f():\n try: g()\n except A as a: h(a)\n except B as b: h(b)\nx = data[at : at + 2]")
    )

"""No import cycle has more than two files. Imports for type checkers count.

The import-linter contracts in pyproject.toml say which part may import which.
"""

from __future__ import annotations

import grimp

CIRCLE_MAX = 2


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """The modules that import one another, directly or indirectly, largest cycle first."""
    left, found = set(graph.modules), []
    while left:
        module = left.pop()
        circle = graph.find_upstream_modules(module) & graph.find_downstream_modules(module) | {module}
        left -= circle
        found.append(sorted(circle))
    return sorted(found, key=len, reverse=True)


def test_no_circle_of_more_than_two_files() -> None:
    graph = grimp.build_graph("muster", cache_dir=None)
    assert len(graph.modules) > 400
    assert not [each for each in circles(graph) if len(each) > CIRCLE_MAX]


def test_a_circle_is_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in ("ab", "bc", "ca", "cd"):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [["a", "b", "c"], ["d"]]

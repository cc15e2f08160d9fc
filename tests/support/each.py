"""Many cases in one test: `each` is to `parametrize` what a loop is to many tests.

For cases that take next to no time and can share their fixtures: an id for each would cost more than the case
itself, in every process that collects it. All cases run; the test fails with the names of those that failed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pytest

_SHOWN_MAX: Final = 5

Test = TypeVar("Test", bound=Callable[..., Any])


def each(
    names: str, values: Iterable[Any], *, ids: Callable[[Any], object] | Sequence[str] | None = None
) -> Callable[[Test], Test]:
    """`names`, `values` and `ids` as in `pytest.mark.parametrize`. Fixtures are shared by all cases.

    With several decorators, the lowest varies fastest.
    """
    arguments = [name.strip() for name in names.split(",")]
    cases = list(_cases(arguments, values, ids))

    def decorate(test: Test) -> Test:
        looped: Any

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def looped(**fixtures: Any) -> None:
                failures = Failures()
                for name, case in cases:
                    try:
                        await test(**fixtures, **case)
                    except (Exception, pytest.fail.Exception) as error:
                        failures.add(name, error)
                failures.report(len(cases))
        else:

            @functools.wraps(test)
            def looped(**fixtures: Any) -> None:
                failures = Failures()
                for name, case in cases:
                    try:
                        test(**fixtures, **case)
                    except (Exception, pytest.fail.Exception) as error:
                        failures.add(name, error)
                failures.report(len(cases))

        return _taking(looped, test, arguments)

    return decorate


def at_once(
    names: str, values: Iterable[Any], *, ids: Callable[[Any], object] | Sequence[str] | None = None
) -> Callable[[Test], Test]:
    """`each` for coroutines that mostly wait: all cases run concurrently on the test's loop."""
    arguments = [name.strip() for name in names.split(",")]
    cases = list(_cases(arguments, values, ids))

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        async def together(**fixtures: Any) -> None:
            failures = Failures()

            async def run(name: str, case: dict[str, Any]) -> None:
                try:
                    await test(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    failures.add(name, error)

            async with asyncio.TaskGroup() as group:
                for name, case in cases:
                    group.create_task(run(name, case))
            failures.report(len(cases))

        return _taking(together, test, arguments)

    return decorate


class Failures:
    """The failures, by case name."""

    def __init__(self) -> None:
        self._errors: dict[str, BaseException] = {}

    def add(self, name: str, error: BaseException) -> None:
        if isinstance(error, SeveralFailed):
            self._errors |= {f"{name}-{inner}": each for inner, each in error.errors.items()}
        else:
            self._errors[name] = error

    def report(self, cases: int) -> None:
        """Raise `SeveralFailed` if there are failures."""
        assert cases, "no cases: nothing was tested"
        if self._errors:
            raise SeveralFailed(self._errors)


class SeveralFailed(AssertionError):
    def __init__(self, errors: dict[str, BaseException]) -> None:
        self.errors = errors
        shown = [
            f"--- {name}\n{''.join(traceback.format_exception(error))}"
            for name, error in list(errors.items())[:_SHOWN_MAX]
        ]
        super().__init__("\n".join([f"{len(errors)} failed: {', '.join(errors)}", *shown]))


def _taking(looped: Any, test: Test, arguments: Sequence[str]) -> Test:
    """Return the test as pytest sees it: without the arguments that the cases supply."""
    signature = inspect.signature(test)
    left = [each for name, each in signature.parameters.items() if name not in arguments]
    del looped.__wrapped__
    looped.__signature__ = signature.replace(parameters=left)
    return looped  # type: ignore[no-any-return]


def _cases(
    arguments: Sequence[str], values: Iterable[Any], ids: Callable[[Any], object] | Sequence[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, value in enumerate(values):
        given, name = value, None
        if isinstance(value, type(pytest.param())):
            given, name = value.values, value.id
        elif len(arguments) == 1:
            given = (value,)
        case = dict(zip(arguments, given, strict=True))
        if name is None and callable(ids):
            name = "-".join(str(ids(item)) for item in given)
        elif name is None and ids is not None:
            name = ids[number]
        yield name or "-".join(map(_shown, given)), case


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)

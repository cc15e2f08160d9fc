from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.support import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = await Bench().start()
    yield bench
    await bench.close()

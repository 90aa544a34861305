"""Nothing that a request made may wait for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.waiting import until


@asynccontextmanager
async def freed_without_the_collector(*kinds: type) -> AsyncIterator[None]:
    """Fail unless every object of these types that the block makes is freed by its references.

    What the block itself holds on to, it must let go of.
    """
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, kinds)}
    gc.disable()
    try:
        yield
        await until(
            lambda: all(id(each) in before for each in gc.get_objects() if isinstance(each, kinds))
        )
    finally:
        gc.enable()

"""Wait for conditions instead of sleeping."""

import asyncio
from collections.abc import Callable

#: How often a condition is looked at. Short beside any timeout, long beside a loop turn.
_POLL_SECONDS = 0.002


async def until(predicate: Callable[[], object], timeout: float = 5.0) -> None:
    """Return once `predicate()` is true; fail with its source line when it never is.

    The loop runs freely between looks, so other tasks make progress.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    while not predicate():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not true within {timeout} s: {_describe(predicate)}")
        await asyncio.sleep(_POLL_SECONDS)


async def turns(count: int = 3) -> None:
    """Let the loop go round `count` times, for effects that need no time to pass."""
    for _ in range(count):
        await asyncio.sleep(0)


def _describe(predicate: Callable[[], object]) -> str:
    code = getattr(predicate, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(predicate)

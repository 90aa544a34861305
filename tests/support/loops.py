"""Run the async tests of a folder on both event loops: workers and gateways run on uvloop."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A hook of pytest-asyncio; a `conftest.py` that imports it runs its folder twice."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

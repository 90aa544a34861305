"""Systems of real processes, started once for all tests that do not end them."""

from collections.abc import Iterator

import pytest

from tests.support.stack import Stack, stack


@pytest.fixture(scope="session")
def system() -> Iterator[Stack]:
    with stack() as system:
        yield system
        system.wait_idle()
        system.check_well()


@pytest.fixture
def own_system() -> Iterator[Stack]:
    """A system whose processes a test may kill."""
    with stack() as system:
        yield system

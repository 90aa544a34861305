"""What tests of both kinds of answer need."""

from __future__ import annotations

import pytest

from tests.support.edge import Way


@pytest.fixture(params=["direct", "ordinary"])
def way(request: pytest.FixtureRequest) -> Way:
    """The two ways that bytes take to a client; both must look the same."""
    way: Way = request.param
    return way

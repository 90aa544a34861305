"""A real vLLM worker conforms to the profile, by the project's own recipes over the wire."""

from functools import partial

import pytest

from nnrp_backend.client import NnrpClient
from nnrp_backend.conformance.planner import make_plan
from nnrp_backend.conformance.recipe import builtin_recipes
from nnrp_backend.conformance.report import Report, rows
from nnrp_backend.conformance.runner import play_all
from tests.vllm.worker import Worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


async def test_it_passes_every_case_that_it_claims(worker: Worker, client: NnrpClient) -> None:
    record = await client.capabilities()
    assert record is not None
    plan = make_plan(builtin_recipes(), record)

    played = [one async for one in play_all(plan, partial(NnrpClient, worker.url))]

    assert Report(plan, played).passed, "\n".join(line for one in played for line in rows(one, 0))
    # It serves no model that always fails, and no embeddings.
    assert len(played) == len(builtin_recipes()) - 2

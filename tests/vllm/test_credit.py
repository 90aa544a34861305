"""A stalled and resumed stream equals a free one.

The adapter stops taking chunks when the window is used up. vLLM then joins what it generates
meanwhile, so the rest comes in fewer chunks; what they say must not change.
"""

from typing import Any

import pytest

from nnrp_backend.client import NnrpClient, TerminalKind
from nnrp_backend.profile.envelope import NnrpOptions
from tests.support.waiting import until
from tests.vllm.answers import Answer, ask_streamed, chat, finished, streamed
from tests.vllm.test_chat import WEATHER
from tests.vllm.worker import Worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

WINDOW = 3


async def ask_stalled(worker: Worker, client: NnrpClient, **body: Any) -> Answer:
    """Read one window, then nothing until the engine has finished, then the rest."""
    async with client.stream(chat(nnrp=NnrpOptions(credit=WINDOW), **body)) as stream:
        events = [await anext(stream) for _ in range(WINDOW)]
        await until(lambda: worker.running() == 0, timeout=30)
        stream.operation.grant(10_000)
        events += [event async for event in stream]
    assert stream.terminal.kind is TerminalKind.RESULT, stream.terminal
    finished(stream.terminal.body)
    return streamed(events)


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 300, "ignore_eos": True},
        {"max_tokens": 60, "ignore_eos": True, "logprobs": True, "top_logprobs": 3},
        {"max_tokens": 60, "n": 2, "logprobs": True},
        {"max_tokens": 200, "tools": [WEATHER], "tool_choice": "required"},
    ],
    ids=["text", "logprobs", "choices", "tools"],
)
async def test_a_stalled_stream_says_what_a_free_one_says(
    worker: Worker, client: NnrpClient, body: dict[str, Any]
) -> None:
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    free = await ask_streamed(client, chat(**body))
    stalled = await ask_stalled(worker, client, **body)
    assert stalled.choices == free.choices
    assert stalled.usage == free.usage
    assert stalled.events < free.events, "nothing was joined, so nothing was stalled"

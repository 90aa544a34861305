import json
from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.translate.chat import plan_chat
from gateway.translate.usage import Usage
from gateway.translate.whole import whole_answer
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.protocol.constants import DropReason
from tests.support.fake_worker import LOST, dropped, refusal

PLAN = plan_chat(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')

BODY: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}


def completed(raw: bytes) -> Terminal:
    return Terminal(TerminalKind.RESULT, body=events.completed(raw))


def test_a_final_body_is_copied() -> None:
    raw = json.dumps(BODY, indent=1).encode()
    assert whole_answer(completed(raw), PLAN, final_chunks=True) == (raw, Usage(5, 1))


def test_a_body_without_usage() -> None:
    raw = b'{"choices":[]}'
    assert whole_answer(completed(raw), PLAN, final_chunks=True) == (raw, None)


def test_any_other_is_made_final() -> None:
    foreign = json.loads(json.dumps(BODY))
    foreign["prompt_logprobs"] = None
    foreign["choices"][0]["finish_reason"] = "repetition"
    foreign["choices"][0]["message"]["reasoning"] = "hm"
    answer = whole_answer(completed(json.dumps(foreign).encode()), PLAN, final_chunks=False)
    tree = json.loads(answer.body)
    assert "prompt_logprobs" not in tree
    assert tree["choices"][0]["finish_reason"] == "stop"
    assert tree["choices"][0]["message"]["reasoning_content"] == "hm"
    assert answer.usage == Usage(5, 1)


@pytest.mark.parametrize(
    ("terminal", "status"),
    [
        (refusal("invalid_body"), 400),
        (refusal("unsupported_model"), 404),
        (refusal("backend_overload"), 503),
        (refusal("request_timeout"), 504),
        (dropped(DropReason.DEADLINE_EXPIRED), 504),
        (LOST, 502),
        (Terminal(TerminalKind.RESULT), 502),
        (Terminal(TerminalKind.RESULT, body=b"not json"), 502),
        (Terminal(TerminalKind.RESULT, body=b'{"type":"response.completed"}'), 502),
        (Terminal(TerminalKind.RESULT, body=events.cancelled("shutdown")), 503),
        (completed(b"7"), 502),
        (completed(b'{"error":{"message":"boom"}}'), 502),
    ],
)
def test_what_is_no_answer_is_an_error(terminal: Terminal, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        whole_answer(terminal, PLAN, final_chunks=False)
    assert caught.value.status == status

import json
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError
from gateway.translate.chat import ChatPlan, open_chat_stream, plan_chat
from gateway.translate.replay import ReplayStream
from gateway.translate.synthesis import SynthesisStream
from nnrp_backend.profile.envelope import ChunkOptions, NnrpOptions, decode_envelope
from nnrp_backend.profile.operations import CHAT

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def plan(**members: Any) -> ChatPlan:
    return plan_chat(json.dumps({**BODY, **members}).encode())


def envelope(plan: ChatPlan, *, ours: bool, **nnrp: Any) -> dict[str, Any]:
    payload = plan.payload(request_id="req-1", nnrp=NnrpOptions(**nnrp), ours=ours)
    decode_envelope(payload, frame_id=1)
    members: dict[str, Any] = msgspec.json.decode(payload)
    return members


class TestPlan:
    def test_what_it_knows(self) -> None:
        assert repr(plan(stream=True, n=2)).startswith("<ChatPlan m [streamed, 2 choices, ")
        assert repr(plan()).startswith("<ChatPlan m [whole, 1 choices, ")

    @pytest.mark.parametrize(
        ("members", "stream", "include_usage", "continuous"),
        [
            ({}, False, False, False),
            ({"stream": None}, False, False, False),
            ({"stream": True}, True, False, False),
            ({"stream": True, "stream_options": None}, True, False, False),
            ({"stream": True, "stream_options": {}}, True, False, False),
            ({"stream": True, "stream_options": {"include_usage": True}}, True, True, False),
            (
                {
                    "stream": True,
                    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                },
                True,
                True,
                True,
            ),
            # vLLM, too, gives usage along the way only to those who want it at the end.
            (
                {"stream": True, "stream_options": {"continuous_usage_stats": True}},
                True,
                False,
                False,
            ),
            ({"stream_options": {"include_usage": True}}, False, False, False),
        ],
    )
    def test_usage(
        self, members: dict[str, Any], stream: bool, include_usage: bool, continuous: bool
    ) -> None:
        made = plan(**members)
        assert made.stream is stream
        assert made.include_usage is include_usage
        assert made.continuous_usage is continuous
        assert made.chunks.usage == ("null" if include_usage else "absent")

    @pytest.mark.parametrize(("n", "choices"), [({}, 1), ({"n": None}, 1), ({"n": 3}, 3)])
    def test_choices(self, n: dict[str, Any], choices: int) -> None:
        assert plan(**n).choices == choices

    @pytest.mark.parametrize(
        ("raw", "code", "param"),
        [
            (b"{", "json_invalid", None),
            (b"[]", "invalid_type", None),
            (b'{"model":"m","model":"m"}', "duplicate_field", None),
            (b'{"messages":[]}', "missing_required_parameter", "model"),
            (json.dumps({**BODY, "stream": "true"}).encode(), "invalid_type", "stream"),
            (json.dumps({**BODY, "stop": 1}).encode(), "invalid_value", "stop"),
        ],
    )
    def test_bad_requests(self, raw: bytes, code: str, param: str | None) -> None:
        with pytest.raises(ApiError) as caught:
            plan_chat(raw)
        error = caught.value
        assert (error.status, error.type) == (400, "invalid_request_error")
        assert (error.code, error.param) == (code, param)

    def test_the_depth_is_an_argument(self) -> None:
        raw = json.dumps({**BODY, "metadata": [[[[1]]]]}).encode()
        with pytest.raises(ApiError) as caught:
            plan_chat(raw, max_depth=3)
        assert caught.value.code == "json_too_deep"

    def test_the_deepest_body_that_passes_here_passes_there(self) -> None:
        deep: Any = 1
        for _ in range(63):
            deep = [deep]
        envelope(plan(metadata=deep), ours=True)
        with pytest.raises(ApiError):
            plan(metadata=[deep])


class TestOurWorkers:
    @pytest.mark.parametrize(
        "raw",
        [
            b'{"model":"m","messages":[{"role":"user","content":"hi"}],"x_vendor":{"deep":[1]}}',
            b' { "messages" : [{"role":"user","content":"hi","x":1}],\r\n"model":"m", "n":1e0}',
            '{"model":"m","messages":[{"role":"user","content":"é\\u00e9"}]}'.encode(),
            b'{"model":"m","messages":[],"stream_options":{"include_usage":true}}',
        ],
    )
    def test_the_clients_bytes_are_spliced_in(self, raw: bytes) -> None:
        if b"1e0" in raw:
            with pytest.raises(ApiError):  # n is an integer: 1e0 is none
                plan_chat(raw)
            raw = raw.replace(b"1e0", b"1")
        payload = plan_chat(raw).payload(request_id="r", nnrp=NnrpOptions(), ours=True)
        assert raw in payload

    def test_the_envelope(self) -> None:
        members = envelope(
            plan(stream=True, stream_options={"include_usage": True}),
            ours=True,
            credit=64,
            deadline_ms=5000,
            timeout_ms=100,
        )
        assert members["operation"] == CHAT
        assert members["request_id"] == "req-1"
        assert members["nnrp"] == {
            "credit": 64,
            "deadline_ms": 5000,
            "timeout_ms": 100,
            "openai_chunk": {"usage": "null", "terminal": "brief"},
        }

    def test_the_reasoning_key_is_asked_for(self) -> None:
        made = plan_chat(json.dumps(BODY).encode(), reasoning="both")
        assert made.chunks == ChunkOptions(reasoning="both", terminal="brief")
        assert envelope(made, ours=True)["nnrp"]["openai_chunk"]["reasoning"] == "both"


class TestForeignWorkers:
    def test_extensions_are_left_out(self) -> None:
        members = envelope(
            plan(), ours=False, credit=64, deadline_ms=5000, timeout_ms=100, diagnostics=True
        )
        assert members["nnrp"] == {"timeout_ms": 100, "diagnostics": True}

    @pytest.mark.parametrize("stream", [{}, {"stream": None}, {"stream": False}])
    def test_stream_options_of_what_is_not_streamed_are_dropped(
        self, stream: dict[str, Any]
    ) -> None:
        made = plan(**stream, stream_options={"include_usage": True}, x_vendor=1)
        body = envelope(made, ours=False)["body"]
        assert "stream_options" not in body
        assert body["x_vendor"] == 1, "what need not change survives"

    def test_stream_options_of_a_stream_are_kept(self) -> None:
        made = plan(stream=True, stream_options={"include_usage": True})
        body = envelope(made, ours=False)["body"]
        assert body["stream_options"]["include_usage"] is True

    def test_token_ids_move_to_where_vllm_reads_them(self) -> None:
        body = envelope(plan(stop=[576, 32]), ours=False)["body"]
        assert body["stop_token_ids"] == [576, 32]
        assert "stop" not in body

    def test_what_only_normalisation_finds_wrong_is_400(self) -> None:
        with pytest.raises(ApiError) as caught:
            envelope(plan(tool_choice="auto"), ours=False)
        assert (caught.value.status, caught.value.param) == (400, "tool_choice")

    def test_a_number_that_only_the_second_parser_refuses_is_400(self) -> None:
        made = plan_chat(plan(x_vendor=0)._raw.replace(b'"x_vendor": 0', b'"x_vendor": 1e400'))
        assert b"1e400" in made._raw
        with pytest.raises(ApiError) as caught:
            envelope(made, ours=False)
        assert (caught.value.status, caught.value.code) == (400, "json_invalid")


class TestOpening:
    def test_replay_where_chunks_are_final_else_synthesis(self) -> None:
        made = plan(stream=True, n=2)
        final = open_chat_stream(made, final_chunks=True, completion_id="c", created=1)
        foreign = open_chat_stream(made, final_chunks=False, completion_id="c", created=1)
        assert isinstance(final, ReplayStream)
        assert isinstance(foreign, SynthesisStream)

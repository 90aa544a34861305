"""The measure is the other path: what a worker that makes its chunks final would have sent."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletionChunk

from gateway.errors import ApiError
from gateway.translate.replay import ReplayStream
from gateway.translate.streams import DONE
from gateway.translate.synthesis import Identity, SynthesisStream
from gateway.translate.usage import Usage
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.profile.chunks import ChatChunkMapper
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ProfileError
from tests.support import chat_chunks as upstream
from tests.support.chat_chunks import call, chunk, finish, reasoning, role, text, usage
from tests.support.fake_worker import LOST

IDENTITY = Identity("chatcmpl-1", 7, "m")

#: Shapes of upstream streams: their chunks, and the `n` of the request.
SHAPES: dict[str, tuple[list[bytes], int]] = {
    "text": ([role(), *text("He", "lo"), finish()], 1),
    "the same token again": ([role(), *text("ha", "ha", "ha"), finish()], 1),
    "line ends and other scripts": ([role(), *text("a\nb\r\n", "é日本🎉", '"\\'), finish()], 1),
    "cut by the token limit": ([role(), *text("He"), finish("length")], 1),
    "filtered": ([role(), *text("He"), finish("content_filter")], 1),
    "no content": ([role(), finish()], 1),
    "a tool call": (
        [role(content=None), *call(0, "c1", "f", '{"a"', ":1}"), finish("tool_calls")],
        1,
    ),
    "a tool call without arguments": (
        [role(content=None), *call(0, "c1", "f"), finish("tool_calls")],
        1,
    ),
    "text, then a tool call": (
        [role(), *text("hm"), *call(0, "c1", "f", "{}"), finish("tool_calls")],
        1,
    ),
    "parallel tool calls": (
        [
            role(content=None),
            *call(0, "c1", "f", '{"a"', ":1}"),
            *call(1, "c2", "f", "{}"),
            finish("tool_calls"),
        ],
        1,
    ),
    "a tool call cut by the token limit": (
        [role(content=None), *call(0, "c1", "f", '{"a"'), finish("length")],
        1,
    ),
    "two choices": (
        [
            role(0),
            role(1),
            *text("a", index=0),
            *text("b", index=1),
            *text("c", index=0),
            finish(index=0),
            finish("length", index=1),
        ],
        2,
    ),
    "a tool call in the second choice": (
        [
            role(0),
            role(1),
            *text("a", index=0),
            *call(0, "c1", "f", "{}", index=1),
            finish(index=0),
            finish("tool_calls", index=1),
        ],
        2,
    ),
}

#: Shapes that events alone cannot tell, for no event carries what is in them.
ONLY_IN_CHUNKS: dict[str, tuple[list[bytes], int]] = {
    "reasoning": ([role(), *reasoning("hm", "hm"), *text("ok"), finish()], 1),
    "refusal": ([role(), chunk({"refusal": "no"}), finish()], 1),
    "log probabilities": (
        [role(), chunk({"content": "a"}, logprobs=upstream.logprobs("a")), finish()],
        1,
    ),
    "log probabilities without text": (
        [role(), chunk({}, logprobs=upstream.logprobs("")), *text("a"), finish()],
        1,
    ),
    "a stop reason": (
        [
            role(),
            *text("a"),
            msgspec.json.encode(
                {
                    **upstream.HEAD,
                    "choices": [
                        {
                            "index": 0,
                            "delta": {},
                            "logprobs": None,
                            "finish_reason": "stop",
                            "stop_reason": "END",
                        }
                    ],
                }
            ),
        ],
        1,
    ),
    "a fingerprint": (
        [
            role(),
            *text("a"),
            chunk({}, reason="stop", system_fingerprint="fp"),
        ],
        1,
    ),
    "choices that finish in another order": (
        [role(0), role(1), *text("a", index=0), finish(index=1), finish(index=0)],
        2,
    ),
    "calls that share a chunk": (
        [
            role(content=None),
            chunk(
                {
                    "tool_calls": [
                        {
                            "index": position,
                            "id": f"c{position}",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"q":1}'},
                        }
                        for position in (0, 1)
                    ]
                }
            ),
            finish("tool_calls"),
        ],
        1,
    ),
    "text and a call in one chunk": (
        [
            role(),
            chunk(
                {
                    "content": "so:",
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c0",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                }
            ),
            finish("tool_calls"),
        ],
        1,
    ),
}


#: Of those, what a worker keeps that sends no event for a chunk without text or calls.
PEER_SHAPES = ("calls that share a chunk", "text and a call in one chunk", "log probabilities")


def bare(event: bytes) -> bytes:
    """An event without its chunk."""
    members = msgspec.json.decode(event)
    members.pop("openai_chunk", None)
    return msgspec.json.encode(members)


def run(stream: Any, told: list[bytes], completed: bytes) -> bytes:
    out = b"".join(map(stream.feed, told))
    return out + stream.end(Terminal(TerminalKind.RESULT, body=completed))


def synthesis(choices: int = 1, *, include_usage: bool = False, **options: Any) -> SynthesisStream:
    return SynthesisStream(
        IDENTITY,
        choices=choices,
        options=ChunkOptions(usage="null" if include_usage else "absent"),
        include_usage=include_usage,
        **options,
    )


def both_paths(
    shape: tuple[list[bytes], int],
    include_usage: bool,
    alter: Callable[[list[bytes]], list[bytes]],
) -> tuple[bytes, bytes]:
    chunks, choices = shape
    told, completed = upstream.worker_events([*chunks, usage()], include_usage=include_usage)
    stream = synthesis(choices, include_usage=include_usage)
    return run(ReplayStream(), told, completed), run(stream, alter(told), completed)


class TestSameBytesAsReplay:
    @pytest.mark.parametrize("include_usage", [False, True])
    @pytest.mark.parametrize("name", SHAPES)
    def test_from_events_alone(self, name: str, include_usage: bool) -> None:
        replay, synthesised = both_paths(
            SHAPES[name], include_usage, lambda told: [bare(event) for event in told]
        )
        assert synthesised == replay

    @pytest.mark.parametrize("include_usage", [False, True])
    @pytest.mark.parametrize("name", [*SHAPES, *ONLY_IN_CHUNKS])
    def test_from_events_with_chunks(self, name: str, include_usage: bool) -> None:
        shape = (SHAPES | ONLY_IN_CHUNKS)[name]
        replay, synthesised = both_paths(shape, include_usage, lambda told: told)
        assert synthesised == replay

    @pytest.mark.parametrize(
        "name",
        # Without the finish chunk of the first choice nobody can know that it came first.
        [*sorted(SHAPES.keys() - {"a tool call in the second choice"}), *PEER_SHAPES],
    )
    def test_from_a_worker_that_repeats_a_chunk_on_each_of_its_events(self, name: str) -> None:
        """And that loses those without an event: role, finish, usage."""
        chunks, choices = (SHAPES | ONLY_IN_CHUNKS)[name]
        told, completed = upstream.worker_events([*chunks, usage()])
        mapper = ChatChunkMapper()
        repeating = []
        for upstream_chunk in chunks:
            for event in mapper.feed(upstream_chunk):
                if bare(event) != events.text_delta(0, ""):
                    repeating.append(events.attach_chunk(bare(event), upstream_chunk))
        replay = run(ReplayStream(), told, completed)
        synthesised = run(synthesis(choices), repeating, completed)
        if chunks[0] == role(content=None):
            # What the lost role chunk said of the content nobody can know.
            replay = replay.replace(b'"content":null', b'"content":""', 1)
        assert synthesised == replay

    @pytest.mark.parametrize("name", ["reasoning", "log probabilities", "refusal"])
    def test_what_events_alone_cannot_tell(self, name: str) -> None:
        replay, synthesised = both_paths(
            ONLY_IN_CHUNKS[name], False, lambda told: [bare(event) for event in told]
        )
        assert synthesised != replay
        assert synthesised.endswith(finish_of("stop") + DONE), "but it is a whole stream"

    def test_usage_along_the_way_comes_with_chunks(self) -> None:
        counts = {"prompt_tokens": 5, "total_tokens": 6, "completion_tokens": 1}
        chunks = [
            chunk({"role": "assistant", "content": ""}, usage=counts),
            chunk({"content": "a"}, usage=counts),
            chunk({}, reason="stop", usage=counts),
            usage(),
        ]
        told, completed = upstream.worker_events(chunks, include_usage=True, continuous_usage=True)
        replay = run(ReplayStream(), told, completed)
        assert replay.count(b'"usage":{') == 4
        stream = synthesis(include_usage=True, continuous_usage=True)
        assert run(stream, told, completed) == replay


def finish_of(reason: str) -> bytes:
    return b"data: " + finish(reason) + b"\n\n"


def chunks_in(out: bytes) -> list[dict[str, Any]]:
    lines = out.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    for tree in chunks:
        ChatCompletionChunk.model_validate(tree)
    return chunks


def deltas(out: bytes) -> list[dict[str, Any]]:
    return [tree["choices"][0]["delta"] for tree in chunks_in(out) if tree["choices"]]


STUB = events.completed(b'{"object":"chat.completion.stream","status":"completed"}')


class TestForeignWorkers:
    def test_the_frozen_shape_of_a_tool_delta(self) -> None:
        def frozen(tool_call: dict[str, Any]) -> bytes:
            return msgspec.json.encode(
                {"type": "response.tool_call.delta", "index": 0, "tool_call": tool_call}
            )

        told = [
            frozen({"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a"'}}),
            frozen({"index": 0, "function": {"arguments": ":1}"}}),
        ]
        out = run(synthesis(), told, STUB)
        assert out == run(
            ReplayStream(),
            *upstream.worker_events(
                [role(content=None), *call(0, "c1", "f", '{"a"', ":1}"), finish("tool_calls")]
            ),
        )

    def test_a_stub_at_the_end_still_gives_a_finish_reason(self) -> None:
        out = run(synthesis(), [events.text_delta(0, "hi")], STUB)
        assert chunks_in(out)[-1]["choices"][0]["finish_reason"] == "stop"

    def test_an_empty_terminal_is_a_success(self) -> None:
        stream = synthesis()
        out = stream.feed(events.text_delta(0, "hi")) + stream.end(Terminal(TerminalKind.RESULT))
        assert deltas(out) == [{"role": "assistant", "content": ""}, {"content": "hi"}, {}]

    def test_a_stream_of_nothing_but_its_end(self) -> None:
        body = {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hi", "reasoning": "hm"},
                    "finish_reason": "length",
                }
            ],
            "usage": {"input_tokens": 3, "output_tokens": 1},
        }
        stream = synthesis(include_usage=True)
        out = run(stream, [], events.completed(msgspec.json.encode(body)))
        assert deltas(out) == [
            {"role": "assistant", "content": ""},
            {"reasoning_content": "hm"},
            {"content": "hi"},
            {},
        ]
        assert chunks_in(out)[-2]["choices"][0]["finish_reason"] == "length"
        assert chunks_in(out)[-1]["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "total_tokens": 4,
        }
        assert stream.usage == Usage(3, 1)

    def test_calls_told_only_at_the_end(self) -> None:
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                "nonsense",
            ],
        }
        body = {"choices": [{"index": 0, "message": message}]}
        out = run(synthesis(), [], events.completed(msgspec.json.encode(body)))
        assert deltas(out)[:2] == [
            {"role": "assistant", "content": None},
            {"tool_calls": [{**message["tool_calls"][0], "index": 0}]},
        ]
        assert chunks_in(out)[-1]["choices"][0]["finish_reason"] == "tool_calls"

    def test_what_was_streamed_is_not_repeated_from_the_end(self) -> None:
        body = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
        told = [events.text_delta(0, "hi")]
        out = run(synthesis(), told, events.completed(msgspec.json.encode(body)))
        assert out.count(b"hi") == 1

    def test_calls_told_only_when_whole(self) -> None:
        told = [events.tool_completed(0, "i", "c1", "f", '{"a":1}')]
        out = run(synthesis(), told, STUB)
        assert [delta.get("tool_calls") for delta in deltas(out)] == [
            None,
            [
                {
                    "index": 0,
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "f", "arguments": ""},
                }
            ],
            [{"index": 0, "function": {"arguments": '{"a":1}'}}],
            None,
        ]

    def test_call_indices_that_count_over_all_output(self) -> None:
        told = [
            events.text_delta(0, "hm"),
            events.tool_started(1, "i1", "c1", "f"),
            events.tool_started(2, "i2", "c2", "g"),
            events.tool_delta(2, "i2", "c2", "{}"),
        ]
        out = run(synthesis(), told, STUB)
        positions = [
            delta["tool_calls"][0]["index"] for delta in deltas(out) if "tool_calls" in delta
        ]
        assert positions == [0, 1, 1]

    def test_a_delta_that_adds_nothing(self) -> None:
        told = [events.tool_started(0, "i", "c1", "f"), events.tool_delta(0, "i", "c1", "")]
        out = run(synthesis(), told, STUB)
        assert sum("tool_calls" in delta for delta in deltas(out)) == 1

    def test_a_failed_call_is_not_a_failed_stream(self) -> None:
        told = [
            events.tool_started(0, "i", "c1", "f"),
            events.tool_error(0, "i", "c1", ProfileError("tool_call_stream_interrupted", "cut")),
        ]
        out = run(synthesis(), told, STUB)
        assert b"cut" not in out

    def test_other_events_have_no_form_here(self) -> None:
        stream = synthesis()
        for body in (
            events.diagnostics({"queue_delay_ms": 1}),
            b'{"type":"response.something_new"}',
            events.text_delta(0, ""),
        ):
            assert stream.feed(body) == b""

    def test_usage_in_the_profiles_own_words(self) -> None:
        told = [
            events.text_delta(0, "hi"),
            events.usage(b'{"input_tokens":3,"output_tokens":1,"total_tokens":4}'),
        ]
        stream = synthesis(include_usage=True)
        last = chunks_in(run(stream, told, STUB))[-1]
        assert last["choices"] == []
        assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}

    def test_usage_nobody_asked_for_is_counted_but_not_sent(self) -> None:
        stream = synthesis()
        out = run(stream, [events.usage(b'{"input_tokens":3,"output_tokens":1}')], STUB)
        assert b"usage" not in out
        assert stream.usage == Usage(3, 1)

    def test_private_finish_reasons_and_nulls_do_not_pass(self) -> None:
        raw = msgspec.json.encode(
            {
                **upstream.HEAD,
                "prompt_token_ids": None,
                "choices": [
                    {
                        "index": 0,
                        "delta": {"role": "assistant", "content": "", "tool_calls": None},
                        "token_ids": None,
                    }
                ],
            }
        )
        told = [events.text_delta(0, "", raw), events.text_delta(0, "hi")]
        body = b'{"choices":[{"index":0,"finish_reason":"repetition"}]}'
        out = run(synthesis(), told, events.completed(body))
        assert b"token_ids" not in out
        assert chunks_in(out)[-1]["choices"][0]["finish_reason"] == "stop"

    def test_chunks_of_more_than_one_line_are_joined(self) -> None:
        pretty = json.dumps(json.loads(role()), indent=1).encode()
        out = run(synthesis(), [events.text_delta(0, "", pretty)], STUB)
        assert deltas(out)[0] == {"role": "assistant", "content": ""}

    def test_the_worker_names_the_stream_where_it_can(self) -> None:
        told = [events.text_delta(0, "hi", text("hi")[0])]
        stream = SynthesisStream(
            Identity("chatcmpl-other", 1, "alias"),
            choices=1,
            options=ChunkOptions(),
            include_usage=False,
        )
        trees = chunks_in(run(stream, told, STUB))
        assert {(tree["id"], tree["created"], tree["model"]) for tree in trees} == {
            ("chatcmpl-1", 7, "m")
        }


class TestBrokenWorkers:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b'{"type":"response.output_text.delta","index":"0","delta":"x"}',
            events.tool_delta(0, "i", "never started", "{}"),
            events.text_delta(0, "x", b'{"error":{"message":"boom at /secret/path"}}'),
            events.text_delta(0, "x", b"[]"),
            events.text_delta(0, "x", b'{"choices":{}}'),
            events.text_delta(0, "x", b'{"choices":[7]}'),
            events.text_delta(0, "x", b'{"choices":[{"index":99999999}]}'),
            events.text_delta(0, "x", b'{"choices":[{"delta":{"tool_calls":[7]}}]}'),
            events.text_delta(99_999_999, "x"),
            events.text_delta(-1, "x"),
        ],
    )
    def test_what_breaks_the_profile_is_an_error_without_details(self, body: bytes) -> None:
        with pytest.raises(ApiError) as caught:
            synthesis().feed(body)
        assert caught.value.code == "backend_error"
        assert "secret" not in caught.value.message

    @pytest.mark.parametrize("reason", ["abort", "error"])
    def test_an_engine_that_gave_up_did_not_finish(self, reason: str) -> None:
        told = [events.text_delta(0, "hi", text("hi")[0])]
        body = b'{"choices":[{"index":0,"finish_reason":"%b"}]}' % reason.encode()
        stream = synthesis()
        out = run(stream, told, events.completed(body))
        assert b'"error":{' in out
        assert out.endswith(DONE)
        assert stream.error is not None

    def test_a_lost_worker(self) -> None:
        stream = synthesis()
        out = stream.feed(events.text_delta(0, "hi")) + stream.end(LOST)
        assert b'"content":"hi"' in out, "no token that came is lost"
        assert b'"finish_reason":"' not in out
        assert out.endswith(DONE)
        assert stream.feed(events.text_delta(0, "more")) == b""

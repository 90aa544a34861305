"""Streams of chunks, from the engine's side to the client's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from nnrp_backend.profile.chunks import MAX_CHOICES, ChatChunkMapper
from nnrp_backend.profile.completion import finalize_completion
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from tests.support import engine_chunks as chat
from tests.support.engine_chunks import (
    Answer,
    chunk,
    chunk_of,
    finish,
    role,
    run,
    text,
    usage_chunk,
)

RECORDINGS = chat.recordings()


def mapper(**options: Any) -> ChatChunkMapper:
    flags = {
        key: options.pop(key) for key in ("include_usage", "continuous_usage") if key in options
    }
    return ChatChunkMapper(ChunkOptions(**options), request_id="r1", **flags)


class TestOrdinaryStreams:
    def test_each_chunk_is_attached_to_one_event_in_order(self) -> None:
        sent = [role(), text("He"), text("llo"), finish()]
        answer = run(mapper(), sent)
        assert answer.attached == sent
        assert answer.types() == ["output_text.delta"] * 4
        assert answer.text() == "Hello"

    def test_chunks_that_are_final_keep_their_bytes(self) -> None:
        # Unusual escapes, numbers and order of members are no reason to encode anew.
        odd = (
            b'{"created":1700000000,"id":"chatcmpl-1","object":"chat.completion.chunk",'
            b'"model":"m","x":1.50,"choices":[{"delta":{"content":"\\u0041"},"index":0,'
            b'"finish_reason":null,"logprobs":null}]}'
        )
        answer = run(mapper(), [role(), odd, odd, finish()])
        assert answer.attached[1:3] == [odd, odd]
        assert answer.text() == "AA"

    def test_a_chunk_that_makes_no_event_rides_on_an_empty_text_delta(self) -> None:
        answer = run(mapper(), [role(), chunk({"reasoning_content": "hm"}), text("x"), finish()])
        assert answer.events[1] == {
            "type": "response.output_text.delta",
            "index": 0,
            "delta": "",
            "openai_chunk": json.loads(chunk({"reasoning_content": "hm"})),
        }

    def test_text_is_told_by_choice(self) -> None:
        sent = [role(), role(1), text("a", 1), text("b"), text("c", 1), finish(), finish(index=1)]
        answer = run(mapper(), sent)
        assert answer.attached == sent
        assert (answer.text(0), answer.text(1)) == ("b", "ac")

    def test_one_chunk_with_several_choices_is_attached_once(self) -> None:
        both = chunk_of(chat.choice({"content": "a"}), chat.choice({"content": "b"}, 1))
        answer = run(mapper(), [role(), role(1), both, finish(), finish(index=1)])
        assert answer.attached.count(both) == 1
        assert (answer.text(0), answer.text(1)) == ("a", "b")

    def test_a_chunk_without_choices_or_usage_is_kept(self) -> None:
        odd = chunk_of(prompt_filter_results=[{"prompt_index": 0}])
        assert run(mapper(), [odd, role(), finish()]).attached[0] == odd

    def test_members_that_nobody_knows_are_kept(self) -> None:
        sent = chunk_of(chat.choice({"content": "x", "y": 1}, token_ids=[5]), prompt_logprobs=[2])
        answer = run(mapper(), [role(), sent, finish()])
        assert answer.attached[1] == sent


class TestFinality:
    def test_engine_private_nulls_go_and_openais_stay(self) -> None:
        sent = chunk_of(chat.choice({"content": "x"}, token_ids=None), prompt_text=None)
        assert run(mapper(), [role(), sent, finish()]).attached[1] == text("x")

    def test_members_that_openai_requires_are_written(self) -> None:
        bare = chunk_of({"index": 0, "delta": {"role": "assistant"}})
        (written,) = mapper().feed(bare)
        choice = json.loads(written)["openai_chunk"]["choices"][0]
        assert choice["finish_reason"] is None
        assert choice["logprobs"] is None

    def test_a_role_chunk_may_say_that_there_is_no_text(self) -> None:
        sent = chunk({"role": "assistant", "content": None})
        assert run(mapper(), [sent, finish()]).attached[0] == sent

    def test_a_role_comes_once_whoever_repeats_it(self) -> None:
        again = chunk({"role": "assistant", "content": "x"})
        answer = run(mapper(), [again, again, again, finish()])
        assert [c["choices"][0]["delta"] for c in answer.chunks[1:3]] == [{"content": "x"}] * 2

    def test_a_role_is_added_where_the_engine_has_none(self) -> None:
        answer = run(mapper(), [text("x"), finish()])
        assert answer.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "x"}

    def test_lower_choices_are_opened_first(self) -> None:
        sent = [role(2), role(0), text("x", 1), *(finish(index=index) for index in range(3))]
        answer = run(mapper(), sent)
        opened = [c["choices"][0]["index"] for c in answer.chunks[:3]]
        assert opened == [0, 1, 2]
        # The engine's own role chunk of choice 0 has nothing left to say, but is still there.
        assert answer.chunks[3]["choices"][0]["delta"] == {"content": ""}
        assert len(answer.chunks) == len(sent) + 2

    def test_choices_of_one_chunk_are_put_in_order(self) -> None:
        both = chunk_of(chat.choice({"content": "b"}, 1), chat.choice({"content": "a"}))
        answer = run(mapper(), [both, finish(), finish(index=1)])
        assert [choice["index"] for choice in answer.chunks[0]["choices"]] == [0, 1]
        assert len(answer.chunks) == 3

    @pytest.mark.parametrize(
        "garbled",
        [
            text("x").replace(b"{", b"{\n"),
            text("x").replace(b",", b",\r\n "),
            text("x") + b"\n",
        ],
    )
    def test_a_chunk_becomes_one_line(self, garbled: bytes) -> None:
        assert run(mapper(), [role(), garbled, finish()]).chunks[1] == json.loads(text("x"))

    def test_bad_utf8_becomes_the_replacement_character(self) -> None:
        bad = text("a?b").replace(b"?", b"\xff")
        answer = run(mapper(), [role(), text("ok"), bad, text("ok"), finish()])
        assert answer.text() == "oka\ufffdbok"
        assert answer.attached[3] == text("ok")

    def test_id_created_model_and_fingerprint_stay_what_they_were(self) -> None:
        first = chunk_of(chat.choice({"role": "assistant"}), system_fingerprint="f1")
        later = chunk_of(chat.choice({"content": "x"}), system_fingerprint="f2")
        later = later.replace(b"chatcmpl-1", b"chatcmpl-2").replace(b"1700000000", b"1700000001")
        answer = run(mapper(), [first, later, finish()])
        assert answer.chunks[1] == json.loads(
            chunk_of(chat.choice({"content": "x"}), system_fingerprint="f1")
        )

    def test_missing_identity_is_made_up(self) -> None:
        bare = chat.raw({"choices": [chat.choice({"role": "assistant", "content": "x"})]})
        answer = run(mapper(model="shown"), [bare, finish()])
        assert answer.chunks[0] | {"choices": []} == {
            "id": "chatcmpl-r1",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "shown",
            "choices": [],
        }

    def test_the_model_is_renamed_everywhere(self) -> None:
        answer = run(
            mapper(model="alias", include_usage=True), [role(), text("x"), finish(), usage_chunk()]
        )
        assert {c["model"] for c in answer.chunks} == {"alias"}
        assert answer.body["model"] == "alias"

    @pytest.mark.parametrize("theirs", ["reasoning", "reasoning_content"])
    @pytest.mark.parametrize(
        ("option", "keys"),
        [
            ("reasoning", {"reasoning"}),
            ("reasoning_content", {"reasoning_content"}),
            ("both", {"reasoning", "reasoning_content"}),
        ],
    )
    def test_reasoning_goes_under_the_key_that_was_asked_for(
        self, theirs: str, option: str, keys: set[str]
    ) -> None:
        # The third goes the fast way, the fourth the long way again.
        pieces = ["one", "two", "three", "f\u00f6ur"]
        answer = run(
            mapper(reasoning=option), [role(), *(chunk({theirs: p}) for p in pieces), finish()]
        )
        deltas = [c["choices"][0]["delta"] for c in answer.chunks[1:5]]
        assert deltas == [dict.fromkeys(keys, piece) for piece in pieces]
        assert answer.text() == ""
        message = answer.body["choices"][0]["message"]
        assert {key: message[key] for key in keys} == dict.fromkeys(keys, "".join(pieces))
        assert message["content"] is None

    def test_logprobs_have_all_members_that_openai_requires(self) -> None:
        token = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
        sent = chunk_of(
            chat.choice({"content": "x"}, logprobs={"content": [token, {"token": "y"}]})
        )
        answer = run(mapper(), [role(), sent, finish()])
        assert answer.chunks[1]["choices"][0]["logprobs"] == {
            "content": [
                token,
                {"token": "y", "logprob": -9999.0, "bytes": None, "top_logprobs": []},
            ],
            "refusal": None,
        }


class TestFinishReasons:
    @pytest.mark.parametrize("reason", sorted(chat.FINISH_REASONS))
    def test_openais_reasons_pass(self, reason: str) -> None:
        answer = run(mapper(), [role(), finish(reason)])
        assert answer.attached[-1] == finish(reason)
        assert answer.body["choices"][0]["finish_reason"] == reason

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [("repetition", "stop"), ("eos_token", "stop"), ("max_tokens", "length"), ("odd", "stop")],
    )
    def test_private_reasons_become_openais_and_stay_readable(self, theirs: str, ours: str) -> None:
        answer = run(mapper(), [role(), text("x"), finish(theirs)])
        ending = answer.chunks[-1]["choices"][0]
        assert ending["finish_reason"] == ours
        assert ending["stop_reason"] == theirs

    def test_the_engines_own_stop_reason_is_kept(self) -> None:
        ended = chunk_of(
            chat.choice({}, finish_reason="repetition", stop_reason="repetition_detected")
        )
        ending = run(mapper(), [role(), ended]).chunks[-1]["choices"][0]
        assert (ending["finish_reason"], ending["stop_reason"]) == ("stop", "repetition_detected")

    def test_content_beside_a_finish_reason_is_split_off(self) -> None:
        logprobs = {
            "content": [{"token": "x", "logprob": -1.0, "bytes": [1], "top_logprobs": []}],
            "refusal": None,
        }
        last = chat.choice(
            {"content": "x"}, finish_reason="stop", stop_reason="is", logprobs=logprobs
        )
        answer = run(mapper(), [role(), chunk_of(last, system_fingerprint="f")])
        assert answer.text() == "x"
        content, ending = answer.chunks[1:]
        assert content["choices"] == [chat.choice({"content": "x"}, logprobs=logprobs)]
        assert ending["choices"] == [chat.choice({}, finish_reason="stop", stop_reason="is")]
        assert content["system_fingerprint"] == ending["system_fingerprint"] == "f"

    def test_an_empty_text_beside_a_finish_reason_is_none(self) -> None:
        answer = run(mapper(), [role(), text("x"), chunk({"content": ""}, finish="length")])
        assert answer.attached[-1] == finish("length")

    def test_a_stream_of_one_chunk_has_its_role_before_its_end(self) -> None:
        answer = run(mapper(), [chunk({"role": "assistant", "content": "x"}, finish="stop")])
        assert len(answer.chunks) == 2

    @pytest.mark.parametrize(
        ("reason", "code"),
        [("abort", ErrorCode.BACKEND_CANCELLED), ("error", ErrorCode.BACKEND_ERROR)],
    )
    def test_a_choice_that_the_engine_gave_up_is_not_finished(self, reason: str, code: str) -> None:
        m = mapper()
        m.feed(role())
        (last,) = m.feed(chunk({"content": "x"}, finish=reason))
        event = json.loads(last)
        assert event["delta"] == "x"
        assert event["openai_chunk"]["choices"][0]["finish_reason"] is None
        with pytest.raises(ProfileError) as caught:
            m.finish()
        assert caught.value.code == code

    def test_an_empty_finish_reason_does_not_finish(self) -> None:
        unfinished = chunk({"content": "x"}, finish="")
        answer = run(mapper(), [role(), unfinished, unfinished, finish()])
        assert answer.attached == [role(), text("x"), text("x"), finish()]

    def test_a_stream_that_breaks_off_is_an_error(self) -> None:
        m = mapper()
        for sent in (role(), role(1), text("x"), finish()):
            m.feed(sent)
        with pytest.raises(ProfileError, match="before choice 1 had finished") as caught:
            m.finish()
        assert caught.value.code == ErrorCode.BACKEND_ERROR

    def test_an_empty_stream_is_an_error(self) -> None:
        with pytest.raises(ProfileError, match="ended empty"):
            mapper().finish()


class TestUsage:
    def test_it_is_not_sent_to_those_who_did_not_ask(self) -> None:
        answer = run(mapper(), [role(), text("x"), finish(), usage_chunk()])
        assert len(answer.attached) == 3
        assert answer.of_type("usage") == []
        assert answer.body["usage"] == chat.counts()
        assert answer.mapper.usage == chat.counts()

    def test_it_is_sent_to_those_who_asked(self) -> None:
        answer = run(mapper(include_usage=True), [role(), finish(), usage_chunk()])
        assert answer.attached[-1] == usage_chunk()
        assert answer.events[-1] == {
            "type": "response.usage",
            "usage": chat.counts(),
            "openai_chunk": json.loads(usage_chunk()),
        }

    def test_earlier_chunks_carry_null_where_asked(self) -> None:
        sent = [role(), text("x"), text("y"), chunk({"content": "z"}, finish="stop"), usage_chunk()]
        answer = run(mapper(usage="null", include_usage=True), sent)
        assert [c["usage"] for c in answer.chunks] == [None] * 5 + [chat.counts()]

    def test_null_usage_of_the_engine_goes_where_it_was_not_asked(self) -> None:
        null = [chunk_of(chat.choice({"content": t}), usage=None) for t in "xy"]
        assert run(mapper(), [role(), *null, finish()]).attached[1:3] == [text("x"), text("y")]
        kept = run(mapper(usage="null"), [role(), *null, finish()])
        assert kept.attached[1:3] == null

    @pytest.mark.parametrize("asked", [True, False])
    def test_usage_on_every_chunk_only_when_asked(self, asked: bool) -> None:
        sent = [
            role(),
            *(
                chunk_of(chat.choice({"content": t}), usage=chat.counts(1, n))
                for n, t in enumerate("ab")
            ),
        ]
        answer = run(
            mapper(include_usage=True, continuous_usage=asked), [*sent, finish(), usage_chunk()]
        )
        on_text = [c.get("usage") for c in answer.chunks[1:3]]
        assert on_text == ([chat.counts(1, 0), chat.counts(1, 1)] if asked else [None, None])

    def test_continuous_usage_needs_include_usage(self) -> None:
        sent = chunk_of(chat.choice({"content": "x"}), usage=chat.counts())
        answer = run(mapper(continuous_usage=True), [role(), sent, finish()])
        assert "usage" not in answer.chunks[1]
        assert answer.body["usage"] == chat.counts()

    def test_usage_beside_the_last_choice_gets_its_own_chunk(self) -> None:
        last = chunk_of(chat.choice({}, finish_reason="stop"), usage=chat.counts())
        answer = run(mapper(include_usage=True, usage="null"), [role(), last])
        assert [c["usage"] for c in answer.chunks] == [None, None, chat.counts()]
        assert answer.chunks[-1]["choices"] == []
        assert answer.types()[-1] == "usage"
        assert answer.mapper.finish() == []

    def test_nulls_of_the_details_go(self) -> None:
        # An OpenAI server's usage, as its own clients must see it.
        theirs = {
            "prompt_tokens": 10,
            "completion_tokens": 25,
            "total_tokens": 35,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": None},
            "completion_tokens_details": {"reasoning_tokens": 5},
        }
        answer = run(mapper(include_usage=True), [role(), finish(), chunk_of(usage=theirs)])
        theirs["prompt_tokens_details"] = {"cached_tokens": 0}
        assert answer.chunks[-1]["usage"] == theirs
        assert answer.events[-1]["usage"] == theirs
        assert answer.body["usage"] == theirs


class TestToolCalls:
    def test_a_call_is_started_told_and_completed(self) -> None:
        sent = [
            role(),
            chunk({"tool_calls": [chat.first_call()]}),
            *(
                chunk({"tool_calls": [chat.call(arguments=piece)]})
                for piece in ('{"q"', ':"x"', "}")
            ),
            finish("tool_calls"),
        ]
        answer = run(mapper(), sent)
        assert answer.attached == sent
        assert answer.types() == [
            "output_text.delta",
            "tool_call.started",
            *["tool_call.delta"] * 3,
            "tool_call.completed",
        ]
        identity = {"index": 0, "item_id": "call-0-0", "call_id": "call_a"}
        started, *deltas, completed = [
            {key: value for key, value in event.items() if key not in ("type", "openai_chunk")}
            for event in answer.events[1:]
        ]
        assert started == {**identity, "name": "lookup"}
        assert deltas[1] == {**identity, "arguments_delta": ':"x"'}
        assert completed == {**identity, "name": "lookup", "arguments": '{"q":"x"}'}
        assert answer.body["choices"][0]["message"]["tool_calls"] == [
            {
                "id": "call_a",
                "type": "function",
                "function": {"name": "lookup", "arguments": '{"q":"x"}'},
            }
        ]

    def test_repeated_and_null_identity_is_taken_out(self) -> None:
        repeated = {**chat.first_call(), "function": {"name": "lookup", "arguments": "1"}}
        null = {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "2"}}
        sent = [
            chunk({"tool_calls": [each]}) for each in (chat.first_call(), repeated, null, repeated)
        ]
        answer = run(mapper(), [role(), *sent, finish("tool_calls")])
        entries = [c["choices"][0]["delta"]["tool_calls"][0] for c in answer.chunks[2:5]]
        assert entries == [chat.call(arguments=piece) for piece in "121"]
        assert answer.of_type("tool_call.completed")[0]["arguments"] == "121"

    def test_several_calls_in_one_chunk(self) -> None:
        calls = [chat.first_call(0, "a"), chat.first_call(1, "b", "other")]
        both = chunk({"content": "hm", "tool_calls": calls})
        answer = run(mapper(), [role(), both, finish("tool_calls")])
        assert answer.attached == [role(), both, finish("tool_calls")]
        assert answer.types()[1:] == [
            "output_text.delta",
            "tool_call.started",
            "tool_call.started",
            "tool_call.completed",
            "tool_call.completed",
        ]

    def test_calls_of_other_choices_say_so(self) -> None:
        # Kimi's models count calls, so that every choice has the same ids.
        first = {"tool_calls": [chat.first_call(call_id="functions.lookup:0")]}
        sent = [chunk(first), chunk(first, 1), finish("tool_calls"), finish("tool_calls", 1)]
        answer = run(mapper(), sent)
        own, other = answer.of_type("tool_call.started")
        assert "choice_index" not in own
        assert other["choice_index"] == 1
        assert own["call_id"] != other["call_id"]
        ids = [c["choices"][0]["delta"]["tool_calls"][0]["id"] for c in answer.chunks[:2]]
        assert ids == ["functions.lookup:0"] * 2

    def test_a_call_without_id_gets_one(self) -> None:
        nameless = {"index": 0, "function": {"name": "lookup", "arguments": "{}"}}
        answer = run(mapper(), [role(), chunk({"tool_calls": [nameless]}), finish("tool_calls")])
        entry = answer.chunks[1]["choices"][0]["delta"]["tool_calls"][0]
        assert entry == {**nameless, "id": "call-chatcmpl-1-0-0", "type": "function"}

    def test_a_name_that_comes_late_starts_the_call_then(self) -> None:
        early = {"index": 0, "id": "a", "type": "function", "function": {"arguments": "{"}}
        late = {"index": 0, "function": {"name": "lookup", "arguments": "}"}}
        answer = run(
            mapper(),
            [role(), *(chunk({"tool_calls": [c]}) for c in (early, late)), finish("tool_calls")],
        )
        assert answer.types()[1:] == [
            "output_text.delta",
            "tool_call.started",
            "tool_call.delta",
            "tool_call.completed",
        ]
        assert answer.of_type("tool_call.completed")[0]["arguments"] == "{}"

    def test_a_call_that_is_never_named_is_an_error(self) -> None:
        odd = {"index": 0, "id": "a", "type": "function", "function": {"arguments": "{}"}}
        answer = run(mapper(), [role(), chunk({"tool_calls": [odd]}), finish("tool_calls")])
        (error,) = answer.of_type("tool_call.error")
        assert error["error"]["code"] == "invalid_tool_call_stream"

    def test_a_call_that_the_token_limit_cuts_open_is_an_error_and_length(self) -> None:
        piece = chunk({"tool_calls": [chat.call(arguments='{"q": "x')]}, finish="length")
        answer = run(mapper(), [role(), chunk({"tool_calls": [chat.first_call()]}), piece])
        (error,) = answer.of_type("tool_call.error")
        assert error["error"]["code"] == "tool_call_stream_interrupted"
        assert answer.chunks[-1]["choices"][0]["finish_reason"] == "length"
        message = answer.body["choices"][0]["message"]
        assert message["tool_calls"][0]["function"]["arguments"] == '{"q": "x'

    def test_a_call_that_came_whole_before_the_token_limit_is_completed(self) -> None:
        piece = chunk({"tool_calls": [chat.call(arguments='{"q":1}')]})
        answer = run(
            mapper(), [role(), chunk({"tool_calls": [chat.first_call()]}), piece, finish("length")]
        )
        assert len(answer.of_type("tool_call.completed")) == 1

    def test_open_calls_are_interrupted_by_an_error(self) -> None:
        m = mapper()
        done, other = chat.first_call(0, "a"), chat.first_call(1, "b")
        for sent in (
            chunk({"tool_calls": [done]}),
            finish("tool_calls"),
            chunk({"tool_calls": [other]}, 1),
        ):
            m.feed(sent)
        (event,) = [json.loads(e) for e in m.interrupted(ProfileError("backend_error", "It died."))]
        assert event["type"] == "response.tool_call.error"
        assert event["call_id"] == "b"
        assert event["error"]["code"] == "tool_call_stream_interrupted"
        assert event["error"]["message"] == "It died."
        assert m.interrupted(ProfileError("backend_error", "Again.")) == []

    def test_calls_that_come_after_the_finish_reason_are_still_ended(self) -> None:
        late = chunk({"tool_calls": [chat.first_call()]})
        answer = run(mapper(), [role(), finish(), late])
        assert answer.types()[-1] == "tool_call.completed"

    def test_arguments_after_the_end_of_a_call_make_no_event(self) -> None:
        piece = chunk({"tool_calls": [chat.call(arguments="1")]})
        sent = [role(), chunk({"tool_calls": [chat.first_call()]}), piece, piece]
        answer = run(mapper(), [*sent, finish("tool_calls"), piece, piece])
        assert answer.of_type("tool_call.completed")[0]["arguments"] == "11"
        assert answer.types()[-2:] == ["output_text.delta"] * 2

    def test_an_empty_list_of_calls_is_none(self) -> None:
        answer = run(mapper(), [role(), chunk({"content": "x", "tool_calls": []}), finish()])
        assert answer.attached[1] == text("x")


class TestRefusedChunks:
    def test_an_error_chunk_is_raised(self) -> None:
        # What vLLM's stream says when its engine fails.
        inside = {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}
        m = mapper()
        m.feed(role())
        with pytest.raises(ProfileError, match="boom") as caught:
            m.feed(chat.raw({"error": inside}))
        assert caught.value.code == ErrorCode.BACKEND_ERROR

    def test_an_error_that_is_null_is_none(self) -> None:
        sent = chunk_of(chat.choice({"content": "x"}), error=None)
        assert run(mapper(), [role(), sent, finish()]).attached[1] == text("x")

    @pytest.mark.parametrize(
        "garbage",
        [
            b"",
            b"[DONE]",
            b"[]",
            b'{"choices": 1}',
            b'{"choices": [1]}',
            b'{"choices": [{"index": -1}]}',
            b'{"choices": [{"index": %d}]}' % MAX_CHOICES,
            b'{"choices": [{"index": 0, "delta": {"tool_calls": ["x"]}}]}',
        ],
    )
    def test_what_is_no_chunk_is_a_backend_error(self, garbage: bytes) -> None:
        m = mapper()
        with pytest.raises(ProfileError) as caught:
            m.feed(garbage)
        assert caught.value.code == ErrorCode.BACKEND_ERROR

    @pytest.mark.parametrize(
        "odd",
        [
            b'{"choices": [{"delta": null}]}',
            b'{"choices": [{"index": null, "delta": "x"}]}',
            b'{"choices": [{"index": 0, "delta": {"tool_calls": [{"function": 1}]}}]}',
            b'{"choices": null, "usage": 3}',
            b'{"id": 5, "created": "x", "model": 7, "choices": [{"index": 0}]}',
            b'{"choices": [{"index": 0, "logprobs": {"content": 5}}]}',
            b'{"choices": [{"index": 0, "logprobs": {"content": [5]}}]}',
            b'{"choices": [{"index": 0, "finish_reason": {"a": 1}}]}',
        ],
    )
    def test_odd_members_do_no_harm(self, odd: bytes) -> None:
        assert mapper().feed(odd)


class TestTerminal:
    def test_the_brief_body_has_only_the_end(self) -> None:
        sent = [
            role(),
            role(1),
            text("x"),
            finish("length"),
            finish("stop", 1),
            chunk_of(usage=chat.counts(), system_fingerprint="f"),
        ]
        answer = run(mapper(terminal="brief", model="alias"), sent)
        assert answer.body == {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "alias",
            "choices": [
                {"index": 0, "finish_reason": "length"},
                {"index": 1, "finish_reason": "stop"},
            ],
            "usage": chat.counts(),
        }

    def test_brief_and_full_differ_in_nothing_else(self) -> None:
        for recording in RECORDINGS.values():
            chunks = [bytes(c) for c in recording.chunks]
            full, brief = (run(mapper(terminal=t), chunks) for t in ("full", "brief"))
            assert full.encoded == brief.encoded

    def test_members_of_the_chunk_go_into_the_full_body(self) -> None:
        first = chunk_of(chat.choice({"role": "assistant"}), prompt_token_ids=[1, 2])
        last = chunk_of(usage=chat.counts(), system_fingerprint="f", metrics={"ttft": 1})
        body = run(mapper(), [first, finish(), last]).body
        assert body["prompt_token_ids"] == [1, 2]
        assert body["system_fingerprint"] == "f"
        assert body["metrics"] == {"ttft": 1}

    def test_repr_shows_how_far_it_is(self) -> None:
        m = mapper()
        assert repr(m) == "<ChatChunkMapper 0/0 choices finished, 0 calls>"
        for sent in (role(), role(1), chunk({"tool_calls": [chat.first_call()]}), finish()):
            m.feed(sent)
        assert repr(m) == "<ChatChunkMapper 1/2 choices finished, 1 calls>"


SAME_BOTH_WAYS = sorted(RECORDINGS.keys() - {"tool_cut"})


class TestRecordedEngine:
    """What vLLM streamed adds up to what it answers unstreamed."""

    @pytest.mark.parametrize("name", SAME_BOTH_WAYS)
    @pytest.mark.parametrize("reasoning", ["reasoning_content", "reasoning", "both"])
    def test_the_rebuilt_body_equals_the_whole_answer(self, name: str, reasoning: Any) -> None:
        recording = RECORDINGS[name]
        options = ChunkOptions(reasoning=reasoning, model="alias")
        m = ChatChunkMapper(options, include_usage=True, continuous_usage=name == "continuous")
        answer = run(m, [bytes(c) for c in recording.chunks])
        whole = json.loads(finalize_completion(bytes(recording.whole), options))
        assert comparable(answer.body) == comparable(whole)

    @pytest.mark.parametrize("name", RECORDINGS)
    def test_every_chunk_is_attached_once(self, name: str) -> None:
        chunks = [bytes(c) for c in RECORDINGS[name].chunks]
        split = sum(is_split(json.loads(c)) for c in chunks)
        answer = run(mapper(include_usage=True), chunks)
        assert len(answer.attached) == len(chunks) + split

    @pytest.mark.parametrize("name", RECORDINGS)
    def test_openais_own_client_reads_the_chunks(self, name: str) -> None:
        answer = run(mapper(include_usage=True), [bytes(c) for c in RECORDINGS[name].chunks])
        assert_client_agrees(answer)


def comparable(body: dict[str, Any]) -> dict[str, Any]:
    """Take out what differs between two runs of an engine."""
    del body["created"]
    for choice in body["choices"]:
        for call in choice["message"].get("tool_calls", ()):
            call["id"] = "id"
            # vLLM's parser writes the arguments anew when it has them whole.
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return body


def is_split(tree: dict[str, Any]) -> bool:
    return any(
        choice["finish_reason"] is not None and choice["delta"] not in ({}, {"content": ""})
        for choice in tree["choices"]
    )


def assert_client_agrees(answer: Answer) -> None:
    """Let the official client add the chunks up, and compare."""
    state: Any = ChatCompletionStreamState()
    for tree in answer.chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(tree))
    theirs = state.current_completion_snapshot.model_dump(warnings=False)
    ours = answer.body
    for their, our in zip(theirs["choices"], ours["choices"], strict=True):
        assert (their["message"]["content"] or None) == (our["message"]["content"] or None)
        assert their["finish_reason"] == our["finish_reason"]
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in their["message"]["tool_calls"] or ()
        ]
        assert calls == [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in our["message"].get("tool_calls", ())
        ]


def texts(chunks: list[bytes], key: str) -> dict[int, str]:
    joined: dict[int, str] = {}
    for data in chunks:
        for entry in json.loads(data)["choices"]:
            joined[entry["index"]] = joined.get(entry["index"], "") + (
                entry["delta"].get(key) or ""
            )
    return joined


class TestAnyStream:
    @given(
        chat.streams(), st.sampled_from(["reasoning", "reasoning_content", "both"]), st.booleans()
    )
    def test_nothing_is_lost_doubled_or_reordered(
        self, sent: list[bytes], reasoning: Any, null: bool
    ) -> None:
        options = {"reasoning": reasoning, "usage": "null" if null else "absent"}
        answer = run(mapper(include_usage=True, **options), sent)
        content, thoughts = texts(sent, "content"), texts(sent, "reasoning")
        for entry in answer.body["choices"]:
            index, message = entry["index"], entry["message"]
            assert answer.text(index) == content[index] == (message["content"] or "")
            for key in ("reasoning", "reasoning_content"):
                wanted = reasoning in (key, "both")
                assert message.get(key, "") == (thoughts[index] if wanted else "")
        assert texts(answer.attached, "content") == content
        assert_client_agrees(answer)

    @given(chat.streams())
    def test_each_chunk_is_attached_exactly_once_and_in_order(self, sent: list[bytes]) -> None:
        numbered = [data[:-1] + b',"n":%d}' % place for place, data in enumerate(sent)]
        answer = run(mapper(include_usage=True), numbered)
        assert [c["n"] for c in answer.chunks if "n" in c] == list(range(len(sent)))

    @given(chat.streams())
    def test_what_is_remembered_of_a_stream_changes_nothing(self, sent: list[bytes]) -> None:
        quick, slow = mapper(include_usage=True), mapper(include_usage=True)
        for data in sent:
            assert slow.feed(data) == quick.feed(data)
            slow._shapes.forget()
        assert slow.finish() == quick.finish()
        assert slow.completed() == quick.completed()

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import Event, decode_event
from nnrp_backend.profile.tool_calls import (
    ToolCallReader,
    ToolCallRules,
    ToolCallStream,
    arguments_text,
)


def tool_event(kind: str, call_id: str = "a", **members: Any) -> dict[str, Any]:
    identity = {"index": 0, "item_id": f"item-{call_id}", "call_id": call_id}
    return {"type": f"response.tool_call.{kind}", **identity, **members}


def started(call_id: str = "a", **members: Any) -> dict[str, Any]:
    return tool_event("started", call_id, **{"name": "f", **members})


def delta(piece: str, call_id: str = "a", **members: Any) -> dict[str, Any]:
    return tool_event("delta", call_id, arguments_delta=piece, **members)


def completed(arguments: str, call_id: str = "a", **members: Any) -> dict[str, Any]:
    return tool_event("completed", call_id, **{"name": "f", "arguments": arguments, **members})


def failed(call_id: str = "a", **members: Any) -> dict[str, Any]:
    error = {"type": "server_error", "code": "x", "message": "y"}
    return tool_event("error", call_id, error=error, **members)


def broken(*observed: dict[str, Any]) -> list[str]:
    rules = ToolCallRules()
    return [*(said for event in observed for said in rules.observe(event)), *rules.finish()]


class TestRules:
    @pytest.mark.parametrize(
        "good",
        [
            [],
            [started(), completed("")],
            [started(), delta("1"), delta(""), delta("2"), completed("12")],
            [started(), delta("1"), failed()],
            [failed()],
            [
                started(),
                started("b"),
                delta("2", "b"),
                delta("1"),
                completed("2", "b"),
                completed("1"),
            ],
            [{"type": "response.output_text.delta", "index": 0, "delta": "x"}],
        ],
    )
    def test_good_orders(self, good: list[dict[str, Any]]) -> None:
        assert broken(*good) == []

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            ([started(), started(), completed("")], "started twice"),
            ([delta("1"), completed("1")], "before it started"),
            ([completed("")], "before it started"),
            ([started(), completed(""), delta("1")], "after its end"),
            ([started(), completed(""), completed("")], "after its end"),
            ([started(), failed(), completed("")], "after its end"),
            ([started(), failed(), started()], "after its end"),
            ([started(), delta("1"), completed("2")], "other arguments"),
            ([started(), delta("1")], "neither completed nor failed"),
            ([started(), completed("", name="g")], "another name"),
            ([started(), completed("", item_id="other")], "changed its item_id"),
        ],
    )
    def test_bad_orders(self, bad: list[dict[str, Any]], said: str) -> None:
        (found,) = broken(*bad)
        assert said in found

    def test_events_with_broken_members_are_not_its_business(self) -> None:
        assert broken({"type": "response.tool_call.started"}) == []


def decoded(**members: Any) -> Event:
    return decode_event(json.dumps({"type": "response.tool_call.delta", **members}).encode())


class TestReader:
    def test_the_contracts_events_pass(self) -> None:
        event = decoded(index=0, item_id="i", call_id="c", arguments_delta="x")
        assert ToolCallReader().read(event) == [event]

    def test_other_events_pass(self) -> None:
        event = decode_event(b'{"type":"response.usage","usage":{}}')
        assert ToolCallReader().read(event) == [event]

    def test_the_frozen_shape_becomes_the_contracts(self) -> None:
        reader = ToolCallReader()
        function = {"name": "lookup", "arguments": '{"q"'}
        first = {"index": 1, "id": "call_a", "type": "function", "function": function}
        then = {"index": 1, "function": {"arguments": ":1}"}}
        found = reader.read(decoded(index=1, tool_call=first, openai_chunk={"id": "c"}))
        found += reader.read(decoded(index=1, tool_call=then))
        assert [(e.type, e.index, e.call_id, e.item_id) for e in found] == [
            ("response.tool_call.started", 1, "call_a", "call_a"),
            ("response.tool_call.delta", 1, "call_a", "call_a"),
            ("response.tool_call.delta", 1, "call_a", "call_a"),
        ]
        assert found[0].name == "lookup"
        assert [e.arguments_delta for e in found] == ["", '{"q"', ":1}"]
        # The chunk is attached once here, too.
        assert [bytes(e.openai_chunk) for e in found] == [b'{"id": "c"}', b"", b""]

    def test_calls_without_ids_are_told_apart_by_index(self) -> None:
        reader = ToolCallReader()
        first, other = (
            reader.read(decoded(index=index, tool_call={"function": {"name": "f"}}))[0]
            for index in (0, 1)
        )
        assert first.call_id != other.call_id

    def test_a_delta_that_says_nothing_is_no_event(self) -> None:
        reader = ToolCallReader()
        reader.read(decoded(index=0, tool_call={"id": "a", "function": {"name": "f"}}))
        assert reader.read(decoded(index=0, tool_call={"function": {"arguments": ""}})) == []

    @pytest.mark.parametrize("odd", [{}, {"function": None}, {"index": "x", "function": 3}])
    def test_odd_shapes_do_no_harm(self, odd: dict[str, Any]) -> None:
        (event,) = ToolCallReader().read(decoded(index=0, tool_call=odd))
        assert event.type == "response.tool_call.started"


class TestStream:
    def test_identity_comes_once(self) -> None:
        call = ToolCallStream(0, 0)
        first = {
            "index": 0,
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
        assert not call.finish_delta(first, "fallback")
        again = {
            "index": 0,
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
        }
        assert call.finish_delta(again, "fallback")
        assert again == {"index": 0, "function": {"arguments": "{}"}}
        assert call.message() == {
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
        }

    def test_nulls_go_and_unknown_members_stay(self) -> None:
        call = ToolCallStream(0, 0)
        call.finish_delta({"index": 0, "id": "a", "function": {"name": "f"}}, "fallback")
        # An OpenAI continuation, as a serialiser that writes nulls would have it.
        theirs = {
            "index": 0,
            "id": None,
            "type": None,
            "function": {"name": None, "arguments": '{"a":'},
        }
        call.finish_delta(theirs, "fallback")
        assert theirs == {"index": 0, "function": {"arguments": '{"a":'}}
        kept = {"index": 0, "x": 1, "y": None, "function": {"arguments": "", "z": 2}}
        call.finish_delta(kept, "fallback")
        assert kept == {"index": 0, "x": 1, "function": {"arguments": "", "z": 2}}

    @pytest.mark.parametrize("function", [None, 1, {}, {"arguments": None}])
    def test_arguments_are_always_there(self, function: Any) -> None:
        call = ToolCallStream(0, 0)
        entry = {"index": 0, "id": "a", "type": "custom", "function": function}
        assert call.finish_delta(entry, "fallback")
        assert entry == {"index": 0, "id": "a", "type": "custom", "function": {"arguments": ""}}

    @pytest.mark.parametrize(
        ("name", "arguments", "reason", "kind"),
        [
            ("f", '{"a":1}', "tool_calls", "completed"),
            ("f", '{"a":1}', "length", "completed"),
            ("f", "not JSON", "stop", "completed"),
            ("f", '{"a":', "length", "tool_call_stream_interrupted"),
            ("f", "", "content_filter", "tool_call_stream_interrupted"),
            (None, "{}", "tool_calls", "invalid_tool_call_stream"),
        ],
    )
    def test_how_it_ends(self, name: str | None, arguments: str, reason: str, kind: str) -> None:
        call = ToolCallStream(0, 0)
        function = {"name": name, "arguments": arguments}
        call.finish_delta({"index": 0, "id": "a", "function": function}, "fallback")
        call.call_id = "a"
        assert bool(call.events()) is (name is not None)
        event = json.loads(call.end(reason))
        assert call.ended
        if kind == "completed":
            assert (event["type"], event["arguments"]) == (
                "response.tool_call.completed",
                arguments,
            )
        else:
            assert (event["type"], event["error"]["code"]) == ("response.tool_call.error", kind)

    def test_a_piece_whose_event_is_made_elsewhere_is_not_told_again(self) -> None:
        call = ToolCallStream(0, 0)
        call.finish_delta({"index": 0, "id": "a", "function": {"name": "f"}}, "fallback")
        call.call_id = "a"
        call.events()
        call.gather("1")
        call.finish_delta({"index": 0, "function": {"arguments": "2"}}, "fallback")
        assert [json.loads(event)["arguments_delta"] for event in call.events()] == ["2"]
        assert call.arguments == "12"

    def test_failing_ends_it(self) -> None:
        call = ToolCallStream(0, 0)
        call.finish_delta({"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}, "")
        call.call_id = "a"
        assert len(call.events()) == 2
        error = json.loads(call.fail(ProfileError("tool_call_stream_interrupted", "It died.")))
        assert error["error"]["message"] == "It died."
        assert call.ended
        assert call.events() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a": 1}', '{"a": 1}'), ({"a": [1, None]}, '{"a":[1,null]}'), (None, ""), ({}, "{}")],
)
def test_arguments_become_text(arguments: Any, text: str) -> None:
    assert arguments_text(arguments) == text


@given(st.lists(st.text(), max_size=5), st.sampled_from(["stop", "tool_calls"]))
def test_a_streamed_call_keeps_the_rules(pieces: list[str], reason: str) -> None:
    call = ToolCallStream(1, 0)
    told: list[bytes] = []
    call.finish_delta({"index": 0, "id": "a", "function": {"name": "f"}}, "fallback")
    call.call_id = "a"
    for piece in pieces:
        call.finish_delta({"index": 0, "function": {"arguments": piece}}, "fallback")
        told += call.events()
    told += call.events()
    told.append(call.end(reason))
    events = [json.loads(event) for event in told]
    assert broken(*events) == []
    assert events[-1]["arguments"] == "".join(pieces)

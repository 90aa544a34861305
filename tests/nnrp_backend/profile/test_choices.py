"""One choice by itself; whole streams are in test_chunks."""

import json
from typing import Any

import pytest

from nnrp_backend.profile.choices import ChoiceStream
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from tests.support import engine_chunks as chat


@pytest.fixture
def stream() -> ChoiceStream:
    return ChoiceStream(0, set(), assemble=True)


def finish(stream: ChoiceStream, entry: dict[str, Any]) -> bool:
    return stream.finish(entry, ChunkOptions(), "chatcmpl-1")


def opened(stream: ChoiceStream) -> ChoiceStream:
    finish(stream, chat.choice({"role": "assistant", "content": ""}))
    return stream


def test_the_first_delta_has_the_role_first(stream: ChoiceStream) -> None:
    entry = chat.choice({"content": "x", "role": None})
    assert finish(stream, entry)
    assert list(entry["delta"].items()) == [("role", "assistant"), ("content", "x")]
    later = chat.choice({"content": "x"})
    assert not finish(stream, later)


def test_the_engines_role_is_kept(stream: ChoiceStream) -> None:
    entry = chat.choice({"role": "user", "content": ""})
    assert not finish(stream, entry)
    assert entry["delta"]["role"] == "user"


@pytest.mark.parametrize("delta", [None, "x", 1, []])
def test_a_delta_is_an_object(stream: ChoiceStream, delta: Any) -> None:
    entry = chat.choice(delta)
    assert finish(opened(stream), entry)
    assert entry["delta"] == {}


@pytest.mark.parametrize(
    ("entry", "final"),
    [
        (chat.choice({"role": "assistant", "content": "x"}), chat.choice({"content": "x"})),
        (chat.choice({"content": "x", "tool_calls": []}), chat.choice({"content": "x"})),
        (chat.choice({"content": None, "refusal": None}), chat.choice({})),
        (
            chat.choice({"content": ""}, finish_reason="stop"),
            chat.choice({}, finish_reason="stop"),
        ),
    ],
)
def test_what_a_delta_loses(
    stream: ChoiceStream, entry: dict[str, Any], final: dict[str, Any]
) -> None:
    assert finish(opened(stream), entry)
    assert entry == final


def test_text_and_calls_of_one_delta_are_told_in_that_order(stream: ChoiceStream) -> None:
    entry = chat.choice({"content": "x", "tool_calls": [chat.first_call()]})
    finish(opened(stream), entry)
    text, started = [json.loads(event) for event in stream.take(entry)]
    assert (text["delta"], started["name"]) == ("x", "lookup")
    (completed,) = stream.end_calls()
    assert json.loads(completed)["call_id"] == "call_a"
    assert stream.end_calls() == []


def test_an_empty_text_beside_a_call_is_not_told(stream: ChoiceStream) -> None:
    entry = chat.choice({"content": "", "tool_calls": [chat.first_call()]})
    finish(opened(stream), entry)
    (started,) = [json.loads(event) for event in stream.take(entry)]
    assert started["name"] == "lookup"


def test_splitting(stream: ChoiceStream) -> None:
    opened(stream)
    for entry in (chat.choice({"content": "x"}), chat.choice({}, finish_reason="stop")):
        assert stream.split(entry) is None
    both = chat.choice({"content": "x"}, finish_reason="length", stop_reason=5)
    ending = stream.split(both)
    assert both == chat.choice({"content": "x"})
    assert ending == chat.choice({}, finish_reason="length", stop_reason=5)


def test_it_finishes_once(stream: ChoiceStream) -> None:
    opened(stream)
    told = []
    for reason in ("length", "stop", "abort"):
        entry = chat.choice({}, finish_reason=reason)
        finish(stream, entry)
        stream.take(entry)
        told.append(entry["finish_reason"])
    assert told == ["length", None, None]
    assert stream.finish_reason == "length"
    assert stream.unfinished() is None


def test_how_it_broke_off(stream: ChoiceStream) -> None:
    error = opened(stream).unfinished()
    assert error is not None
    assert error.code == ErrorCode.BACKEND_ERROR
    finish(stream, chat.choice({}, finish_reason="abort"))
    error = stream.unfinished()
    assert error is not None
    assert error.code == ErrorCode.BACKEND_CANCELLED


def test_a_malformed_call_is_the_engines_fault(stream: ChoiceStream) -> None:
    with pytest.raises(ProfileError) as caught:
        finish(stream, chat.choice({"tool_calls": [None]}))
    assert caught.value.code == ErrorCode.BACKEND_ERROR


def test_calls_without_index_count_by_place(stream: ChoiceStream) -> None:
    calls = [{"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "g"}}]
    entry = chat.choice({"tool_calls": calls})
    finish(opened(stream), entry)
    assert [call["index"] for call in entry["delta"]["tool_calls"]] == [0, 1]
    assert sorted(stream.calls) == [0, 1]


@pytest.mark.parametrize("index", [None, "0", -1, True])
def test_an_index_that_is_none_counts_as_the_place(stream: ChoiceStream, index: Any) -> None:
    entry = chat.choice({"tool_calls": [{**chat.first_call(), "index": index}]})
    assert finish(opened(stream), entry)
    assert entry["delta"]["tool_calls"] == [chat.first_call()]


def test_a_call_goes_on_by_its_index(stream: ChoiceStream) -> None:
    finish(opened(stream), chat.choice({"tool_calls": [chat.first_call(3)]}))
    piece = chat.choice({"tool_calls": [chat.call(3, arguments="{}")]})
    assert not finish(stream, piece)
    assert stream.calls[3].arguments == "{}"
    assert [json.loads(event)["type"] for event in stream.take(piece)] == [
        "response.tool_call.started",
        "response.tool_call.delta",
    ]


def test_ids_in_events_are_unique_among_choices() -> None:
    known: set[str] = set()
    streams = [ChoiceStream(index, known, assemble=False) for index in (0, 1)]
    events = []
    for stream in streams:
        entry = chat.choice({"tool_calls": [chat.first_call()]}, stream.index)
        finish(stream, entry)
        events += [json.loads(event) for event in stream.take(entry)]
    assert [event["call_id"] for event in events] == ["call_a", "call_a.1.0"]


def test_without_assembly_only_the_end_is_known() -> None:
    stream = ChoiceStream(2, set(), assemble=False)
    entry = chat.choice({}, finish_reason="stop")
    finish(stream, entry)
    # Its role made the first chunk more than an end.
    ending = stream.split(entry)
    assert ending is not None
    stream.take(entry)
    stream.take(ending)
    assert stream.whole() == {"index": 2, "finish_reason": "stop"}


def test_marking_the_only_text(stream: ChoiceStream) -> None:
    opened(stream)
    entry = chat.choice({"content": "x"})
    marked = stream.mark_text(entry, "MARK")
    assert marked is not None
    event, gather = marked
    assert entry == chat.choice({"content": "MARK"})
    assert json.loads(event)["delta"] == "MARK"
    for add in gather:
        add("y")
    assert stream.whole()["message"]["content"] == "y"


def test_marking_without_assembly_gathers_nothing() -> None:
    stream = opened(ChoiceStream(1, set(), assemble=False))
    marked = stream.mark_text(chat.choice({"reasoning_content": "x"}, 1), "MARK")
    assert marked is not None
    event, gather = marked
    assert gather == ()
    # Reasoning has no event of its own, so that the text is in the chunk only.
    assert json.loads(event) == {"type": "response.output_text.delta", "index": 0, "delta": ""}


def test_marking_the_arguments_of_an_open_call(stream: ChoiceStream) -> None:
    opening = chat.choice({"tool_calls": [chat.first_call()]})
    finish(opened(stream), opening)
    piece = chat.choice({"tool_calls": [chat.call(arguments="x")]})
    assert stream.mark_text(piece, "MARK") is None  # not told as started yet
    stream.take(opening)
    marked = stream.mark_text(piece, "MARK")
    assert marked is not None
    event, (gather,) = marked
    assert json.loads(event)["arguments_delta"] == "MARK"
    gather("{}")
    assert stream.calls[0].arguments == "{}"
    stream.end_calls()
    assert stream.mark_text(piece, "MARK") is None


@pytest.mark.parametrize(
    "entry",
    [
        chat.choice({}),
        chat.choice({"content": "x", "y": 1}),
        chat.choice({"content": "x"}, token_ids=[1]),
        chat.choice({"content": "x"}, logprobs={"content": [], "refusal": None}),
        chat.choice({"tool_calls": [chat.first_call(), chat.first_call(1)]}),
    ],
)
def test_other_choices_are_not_marked(stream: ChoiceStream, entry: dict[str, Any]) -> None:
    assert stream.mark_text(entry, "MARK") is None

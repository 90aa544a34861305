from typing import Any

import pytest

from nnrp_backend.adapter.request import ChatWork, prepare_chat, traceparent
from nnrp_backend.profile.envelope import ChunkOptions, Envelope, NnrpOptions
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.operations import CHAT
from nnrp_backend.protocol.constants import PriorityClass
from nnrp_backend.protocol.session import Trace
from tests.support.engines import USAGE, chunk

MESSAGES = [{"role": "user", "content": "hi"}]


def prepare(
    body: dict[str, Any] | None = None,
    *,
    nnrp: NnrpOptions | None = None,
    priority_class: int = PriorityClass.BALANCED,
    trace: Trace | None = None,
) -> ChatWork:
    body = {"model": "m", "messages": MESSAGES, **(body or {})}
    envelope = Envelope(CHAT, "req-1", body, nnrp or NnrpOptions())
    return prepare_chat(envelope, priority_class=priority_class, trace=trace)


def test_the_engines_id_is_ours_and_unique() -> None:
    first, second = prepare({"request_id": "mine"}), prepare({"request_id": "mine"})
    assert first.request.id != second.request.id
    assert "mine" not in first.request.id
    assert "request_id" not in first.request.body
    assert first.correlation_id == "req-1"


def test_the_clients_body_is_not_changed() -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, "request_id": "mine"}
    before = dict(body)
    prepare_chat(Envelope(CHAT, "r", body, NnrpOptions()), priority_class=1, trace=None)
    assert body == before


@pytest.mark.parametrize("stream", [None, False])
def test_a_whole_answer(stream: bool | None) -> None:
    work = prepare({"stream": stream, "stream_options": {"include_usage": True}})
    assert not work.request.stream
    assert "stream_options" not in work.request.body
    assert not work.include_usage


@pytest.mark.parametrize(
    ("options", "include", "continuous"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": None}, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"include_usage": False}, False, False),
    ],
)
def test_the_engine_is_always_asked_for_usage(
    options: dict[str, Any] | None, include: bool, continuous: bool
) -> None:
    work = prepare({"stream": True, "stream_options": options})
    assert work.request.stream
    assert work.request.body["stream_options"]["include_usage"] is True
    assert (work.include_usage, work.continuous_usage) == (include, continuous)


def test_other_stream_options_reach_the_engine() -> None:
    work = prepare({"stream": True, "stream_options": {"continuous_usage_stats": True, "x": 1}})
    assert work.request.body["stream_options"] == {
        "continuous_usage_stats": True,
        "x": 1,
        "include_usage": True,
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": "usage"}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": "no"}},
            "stream_options.continuous_usage_stats",
        ),
    ],
)
def test_wrong_types_are_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ProfileError) as caught:
        prepare(body)
    assert (caught.value.code, caught.value.param) == ("invalid_body", param)


def test_the_body_is_normalised() -> None:
    work = prepare({"stop": [576], "tools": []})
    assert work.request.body["stop_token_ids"] == [576]
    assert "tools" not in work.request.body


@pytest.mark.parametrize(
    ("priority_class", "priority"),
    [
        (PriorityClass.INTERACTIVE, -1),
        (PriorityClass.BALANCED, 0),
        (PriorityClass.BACKGROUND, 1),
        (77, 0),
    ],
)
def test_priority_classes(priority_class: int, priority: int) -> None:
    assert prepare(priority_class=priority_class).request.priority == priority


def test_chunk_options_have_defaults() -> None:
    assert prepare().chunk_options == ChunkOptions()
    asked = ChunkOptions(reasoning="both", model="alias")
    assert prepare(nnrp=NnrpOptions(openai_chunk=asked)).chunk_options is asked


def test_the_mapper_knows_what_the_client_asked_for() -> None:
    work = prepare({"stream": True, "stream_options": {"include_usage": True}})
    mapper = work.mapper()
    upstream = chunk(choices=[], usage=USAGE)
    assert b'"response.usage"' in mapper.feed(upstream)[0]
    assert prepare({"stream": True}).mapper().feed(upstream) == []


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (None, None),
        (Trace(0, 5), None),
        (Trace(5, 0), None),
        (Trace(0xABC, 0xDEF), "00-00000000000000000000000000000abc-0000000000000def-01"),
        (Trace(1, 2, sampled=False), "00-00000000000000000000000000000001-0000000000000002-00"),
    ],
)
def test_the_wires_trace_context(trace: Trace | None, expected: str | None) -> None:
    assert traceparent(trace) == expected
    assert prepare(trace=trace).request.traceparent == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "٠٠-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_a_malformed_traceparent_is_ignored(wrong: str) -> None:
    work = prepare(nnrp=NnrpOptions(traceparent=wrong), trace=Trace(1, 2, sampled=False))
    assert work.request.traceparent == traceparent(Trace(1, 2, sampled=False))


def test_a_later_version_of_traceparent_may_have_more() -> None:
    later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes"
    assert prepare(nnrp=NnrpOptions(traceparent=later)).request.traceparent == later


def test_the_envelopes_traceparent_wins_for_it_has_all_bits() -> None:
    whole = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    work = prepare(nnrp=NnrpOptions(traceparent=whole), trace=Trace(1, 2))
    assert work.request.traceparent == whole

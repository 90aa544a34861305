import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import TERMINAL_TYPES, EventType, decode_event, peek, violations

CHUNK = b'{"id":"c",  "choices":[]}'
CALL = {"index": 2, "item_id": "i", "call_id": "c"}
ERROR = {"type": "server_error", "code": "backend_error", "message": "no"}

CONFORMING: dict[str, dict[str, Any]] = {
    "response.output_text.delta": {"index": 0, "delta": ""},
    "response.tool_call.started": {**CALL, "name": "f"},
    "response.tool_call.delta": {**CALL, "arguments_delta": ""},
    "response.tool_call.completed": {**CALL, "name": "f", "arguments": ""},
    "response.tool_call.error": {**CALL, "error": ERROR},
    "response.usage": {"usage": {}},
    "response.completed": {"body": {}},
    "response.error": {"error": ERROR},
    "response.cancelled": {"reason": "user_cancelled"},
    "response.diagnostics": {"diagnostics": {"queue_delay_ms": 1}},
}


class TestEncoders:
    @pytest.mark.parametrize(
        ("encoded", "expected"),
        [
            (
                events.text_delta(1, 'he"\u00e9'),
                {"type": "response.output_text.delta", "index": 1, "delta": 'he"\u00e9'},
            ),
            (
                events.tool_started(2, "i", "c", "f"),
                {"type": "response.tool_call.started", **CALL, "name": "f"},
            ),
            (
                events.tool_delta(2, "i", "c", '{"'),
                {"type": "response.tool_call.delta", **CALL, "arguments_delta": '{"'},
            ),
            (
                events.tool_completed(2, "i", "c", "f", "{}"),
                {"type": "response.tool_call.completed", **CALL, "name": "f", "arguments": "{}"},
            ),
            (
                events.tool_error(2, "i", "c", ProfileError("backend_error", "no"), choice=3),
                {"type": "response.tool_call.error", **CALL, "choice_index": 3, "error": ERROR},
            ),
            (
                events.usage(b'{"input_tokens":1}'),
                {"type": "response.usage", "usage": {"input_tokens": 1}},
            ),
            (events.completed(b'{"id":1}'), {"type": "response.completed", "body": {"id": 1}}),
            (
                events.error(ProfileError("backend_error", "no")),
                {"type": "response.error", "error": ERROR},
            ),
            (
                events.cancelled("deadline"),
                {"type": "response.cancelled", "reason": "deadline"},
            ),
            (
                events.diagnostics({"transport": "tcp"}),
                {"type": "response.diagnostics", "diagnostics": {"transport": "tcp"}},
            ),
        ],
    )
    def test_each_event(self, encoded: bytes, expected: dict[str, Any]) -> None:
        assert json.loads(encoded) == expected
        assert violations(expected) == []

    def test_chunks_are_spliced_unparsed(self) -> None:
        encoded = [
            events.text_delta(0, "x", CHUNK),
            events.tool_started(0, "i", "c", "f", CHUNK),
            events.tool_delta(0, "i", "c", "x", CHUNK),
            events.tool_completed(0, "i", "c", "f", "x", CHUNK),
            events.tool_error(0, "i", "c", ProfileError("backend_error", "no"), CHUNK),
            events.usage(b"{}", CHUNK),
            events.attach_chunk(events.completed(b"{}"), CHUNK),
        ]
        for event in encoded:
            assert bytes(peek(event).openai_chunk) == CHUNK
            assert json.loads(event)["openai_chunk"] == {"id": "c", "choices": []}


class TestDecode:
    @pytest.mark.parametrize("type_", CONFORMING)
    def test_members_of_each_type(self, type_: str) -> None:
        sent = {"type": type_, **CONFORMING[type_]}
        decoded = decode_event(json.dumps(sent).encode())
        for member, value in sent.items():
            found = getattr(decoded, member)
            assert (found if not member.startswith(("usage", "body")) else {}) == value

    def test_raw_members_keep_their_bytes(self) -> None:
        decoded = decode_event(b'{"type":"response.usage","usage":{"a" : 1},"openai_chunk":{ }}')
        assert bytes(decoded.usage) == b'{"a" : 1}'
        assert bytes(decoded.openai_chunk) == b"{ }"
        assert not decoded.body

    def test_unknown_members_and_types_are_ignored(self) -> None:
        assert decode_event(b'{"type":"response.usage","usage":{},"x":1}').type == "response.usage"
        odd = decode_event(b'{"type":"response.audio.delta","delta":{"a":1},"openai_chunk":{}}')
        assert (odd.type, odd.delta, bytes(odd.openai_chunk)) == ("response.audio.delta", "", b"{}")

    @pytest.mark.parametrize(
        "broken",
        [
            b"",
            b"x",
            b"[]",
            b"{}",
            b'{"type":1}',
            b'{"type":"response.output_text.delta","index":0,"delta":null}',
            b'{"type":"response.tool_call.delta","index":"0"}',
            b'{"type":"response.error","error":"boom"}',
            b'{"type":"x","a":' + b"[" * 100_000,
        ],
    )
    def test_broken_events_are_the_workers_fault(self, broken: bytes) -> None:
        with pytest.raises(ProfileError) as caught:
            decode_event(broken)
        assert caught.value.code == ErrorCode.ADAPTER_RUNTIME_ERROR

    @given(st.integers(0, 9), st.text(alphabet=st.characters(exclude_categories=["Cs"])))
    def test_text_survives(self, index: int, text: str) -> None:
        decoded = decode_event(events.text_delta(index, text, CHUNK))
        assert (decoded.index, decoded.delta) == (index, text)


class TestPeek:
    def test_it_reads_what_replay_needs(self) -> None:
        head = peek(events.usage(b'{"a":1}', CHUNK))
        assert head.type == EventType.USAGE
        assert bytes(head.usage) == b'{"a":1}'
        assert bytes(head.openai_chunk) == CHUNK

    def test_absent_members_are_falsy(self) -> None:
        head = peek(events.text_delta(0, "x"))
        assert not head.openai_chunk
        assert not head.usage

    @pytest.mark.parametrize("broken", [b"", b"{}", b"[1]", b'{"type":null}', b'{"type":"x"'])
    def test_broken_events(self, broken: bytes) -> None:
        with pytest.raises(ProfileError) as caught:
            peek(broken)
        assert caught.value.code == ErrorCode.ADAPTER_RUNTIME_ERROR


class TestViolations:
    @pytest.mark.parametrize("type_", CONFORMING)
    def test_conforming_events_have_none(self, type_: str) -> None:
        event = {"type": type_, **CONFORMING[type_]}
        assert violations(event) == []
        assert violations({**event, "openai_chunk": {}, "extra": None}) == []

    @pytest.mark.parametrize(
        ("type_", "member"), [(type_, m) for type_, members in CONFORMING.items() for m in members]
    )
    def test_each_member_is_required(self, type_: str, member: str) -> None:
        event = {"type": type_, **CONFORMING[type_]}
        del event[member]
        (said,) = violations(event)
        assert said.startswith(f"{type_}: {member} must be ")

    @pytest.mark.parametrize(
        ("member", "wrong"),
        [
            ("index", -1),
            ("index", True),
            ("index", 1.0),
            ("index", "0"),
            ("item_id", ""),
            ("call_id", ""),
            ("call_id", None),
            ("name", ""),
            ("arguments", {}),
            ("openai_chunk", []),
            ("openai_chunk", None),
        ],
    )
    def test_wrong_values(self, member: str, wrong: Any) -> None:
        type_ = "response.tool_call.completed"
        (said,) = violations({"type": type_, **CONFORMING[type_], member: wrong})
        assert member in said

    @pytest.mark.parametrize(
        "wrong", [{}, None, "x", {**ERROR, "message": 1}, {**ERROR, "code": ""}]
    )
    def test_wrong_errors(self, wrong: Any) -> None:
        assert len(violations({"type": "response.error", "error": wrong})) == 1

    @pytest.mark.parametrize("event", [{}, {"type": None}, {"type": "x"}, {"type": ["x"]}])
    def test_unknown_types(self, event: dict[str, Any]) -> None:
        (said,) = violations(event)
        assert "no event type" in said

    def test_each_broken_rule_is_named(self) -> None:
        assert len(violations({"type": "response.tool_call.started", "index": 0})) == 3


def test_three_types_end_an_operation() -> None:
    assert {
        "response.completed",
        "response.error",
        "response.cancelled",
    } == TERMINAL_TYPES

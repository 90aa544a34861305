import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.profile.envelope import (
    ChunkOptions,
    Envelope,
    NnrpOptions,
    decode_envelope,
    encode_envelope,
)
from nnrp_backend.profile.errors import ProfileError

CHAT = "chat.completions.create"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def envelope(**changes: Any) -> bytes:
    members = {"schema_version": "openai-compatible/1", "operation": CHAT, "body": BODY, **changes}
    return json.dumps({key: value for key, value in members.items() if value is not ...}).encode()


def refused(payload: bytes, **arguments: Any) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        decode_envelope(payload, frame_id=1, **arguments)
    assert caught.value.type == "invalid_request_error"
    return caught.value


class TestDecode:
    def test_the_example_of_the_profile(self) -> None:
        # Profile section 6.
        body = {
            "model": "example-model",
            "messages": [{"role": "user", "content": "Write a short summary."}],
            "stream": True,
        }
        decoded = decode_envelope(
            envelope(
                request_id="req_01jz7w7rb4m9c8d6aw4e0h9m3f",
                body=body,
                nnrp={"timeout_ms": 30000, "diagnostics": True},
            ),
            frame_id=1,
        )
        assert decoded == Envelope(
            CHAT,
            "req_01jz7w7rb4m9c8d6aw4e0h9m3f",
            body,
            NnrpOptions(timeout_ms=30000, diagnostics=True),
        )

    @pytest.mark.parametrize("missing", [..., None, ""])
    def test_a_missing_request_id_is_derived_from_the_frame(self, missing: Any) -> None:
        decoded = decode_envelope(envelope(request_id=missing), frame_id=7)
        assert decoded.request_id == "nnrp-7"

    def test_hints_never_enter_the_body(self) -> None:
        decoded = decode_envelope(envelope(nnrp={"timeout_ms": 1}), frame_id=1)
        assert decoded.body == BODY

    def test_unknown_hints_are_ignored_and_null_ones_absent(self) -> None:
        hints = {"cancel_after_events": 1, "timeout_ms": None, "credit": 8}
        assert decode_envelope(envelope(nnrp=hints), frame_id=1).nnrp == NnrpOptions(credit=8)
        assert decode_envelope(envelope(nnrp=None), frame_id=1).nnrp == NnrpOptions()

    def test_other_operations_have_bodies_of_their_own(self) -> None:
        decoded = decode_envelope(envelope(operation="models.list", body={}), frame_id=1)
        assert decoded.body == {}


class TestRefusals:
    @pytest.mark.parametrize(
        "payload", [b"", b"{", b"[]", b"1", b'"x"', b"\xff", b'{"a": "\xff"}', b'{"a": 1} x']
    )
    def test_what_is_no_json_object(self, payload: bytes) -> None:
        assert refused(payload).code == "invalid_submit_body"

    @pytest.mark.parametrize("version", [..., None, 1, "", "openai-compatible/2"])
    def test_schema_version(self, version: Any) -> None:
        error = refused(envelope(schema_version=version))
        assert (error.code, error.param) == ("unsupported_schema_version", "schema_version")

    @pytest.mark.parametrize("operation", [..., None, 3])
    def test_operation_that_is_no_name(self, operation: Any) -> None:
        error = refused(envelope(operation=operation))
        assert (error.code, error.param) == ("unsupported_operation", "operation")

    def test_operation_that_is_not_served(self) -> None:
        error = refused(envelope(operation="responses.create"), serves=lambda name: name == CHAT)
        assert error.code == "unsupported_operation"
        assert "responses.create" in error.message

    @pytest.mark.parametrize("body", [..., None, [], "x"])
    def test_body(self, body: Any) -> None:
        assert refused(envelope(body=body)).code == "invalid_body"

    @pytest.mark.parametrize("model", [..., None, "", 3, ["m"]])
    def test_model(self, model: Any) -> None:
        body = {key: value for key, value in {**BODY, "model": model}.items() if value is not ...}
        error = refused(envelope(body=body))
        assert (error.code, error.param) == ("missing_model", "model")

    @pytest.mark.parametrize("messages", [..., None, [], "hi", {}])
    def test_messages(self, messages: Any) -> None:
        body = {key: v for key, v in {**BODY, "messages": messages}.items() if v is not ...}
        error = refused(envelope(body=body))
        assert (error.code, error.param) == ("missing_messages", "messages")

    @pytest.mark.parametrize("request_id", [1, [], {}, True])
    def test_request_id(self, request_id: Any) -> None:
        assert refused(envelope(request_id=request_id)).code == "invalid_request_id"

    @pytest.mark.parametrize(
        "hints",
        [
            [],
            "x",
            {"timeout_ms": -1},
            {"timeout_ms": True},
            {"timeout_ms": 1.5},
            {"timeout_ms": "1"},
            {"deadline_ms": -1},
            {"credit": -1},
            {"diagnostics": 1},
            {"traceparent": 1},
            {"openai_chunk": []},
            {"openai_chunk": {"reasoning": "thoughts"}},
            {"openai_chunk": {"usage": True}},
            {"openai_chunk": {"terminal": "none"}},
        ],
    )
    def test_hints(self, hints: Any) -> None:
        error = refused(envelope(nnrp=hints))
        assert (error.code, error.param) == ("invalid_nnrp_policy", "nnrp")

    def test_the_first_wrong_member_decides(self) -> None:
        # The order in which public adapters check; each step repairs one member.
        wrong: dict[str, Any] = {
            "schema_version": "x",
            "operation": "x",
            "body": "x",
            "request_id": 1,
            "nnrp": "x",
        }
        repairs: list[tuple[str, dict[str, Any]]] = [
            ("unsupported_schema_version", {"schema_version": "openai-compatible/1"}),
            ("unsupported_operation", {"operation": CHAT}),
            ("invalid_body", {"body": {}}),
            ("missing_model", {"body": {"model": "m"}}),
            ("missing_messages", {"body": BODY}),
            ("invalid_request_id", {"request_id": "r"}),
            ("invalid_nnrp_policy", {"nnrp": {}}),
        ]
        for code, repair in repairs:
            assert refused(envelope(**wrong), serves=lambda name: name == CHAT).code == code
            wrong |= repair
        assert decode_envelope(envelope(**wrong), frame_id=1).request_id == "r"


def nested(levels: int) -> Any:
    return {} if levels == 1 else {"x": nested(levels - 1)}


class TestDepth:
    def test_a_body_may_have_64_levels(self) -> None:
        deep = {**BODY, "x": nested(63)}
        assert decode_envelope(envelope(body=deep), frame_id=1).body == deep

    def test_and_no_more(self) -> None:
        error = refused(envelope(body={**BODY, "x": nested(64)}))
        assert error.code == "invalid_submit_body"
        assert "64 levels" in error.message

    def test_the_limit_is_the_callers(self) -> None:
        assert refused(envelope(), max_depth=2).code == "invalid_submit_body"
        assert decode_envelope(envelope(), frame_id=1, max_depth=3).body == BODY

    def test_depth_is_not_breadth(self) -> None:
        wide = {**BODY, "x": [[[1]] for _ in range(100)], "y": "[" * 100}
        assert decode_envelope(envelope(body=wide), frame_id=1).body == wide

    def test_nesting_that_no_parser_takes(self) -> None:
        assert refused(b"[" * 1_000_000).code == "invalid_submit_body"


class TestEncode:
    def test_the_bodys_bytes_are_spliced(self) -> None:
        body = b'{"model": "m",  "messages":[ {"role":"user","content":"\\u0041"} ], "n":1.0}'
        assert body in encode_envelope(CHAT, body)

    def test_only_what_is_set_is_sent(self) -> None:
        assert json.loads(encode_envelope("models.list", b"{}")) == {
            "schema_version": "openai-compatible/1",
            "operation": "models.list",
            "body": {},
        }
        full = encode_envelope(
            CHAT,
            b"{}",
            request_id='r"1',
            nnrp=NnrpOptions(credit=4, openai_chunk=ChunkOptions(usage="null", model="m")),
        )
        assert json.loads(full) == {
            "schema_version": "openai-compatible/1",
            "operation": CHAT,
            "request_id": 'r"1',
            "nnrp": {"credit": 4, "openai_chunk": {"usage": "null", "model": "m"}},
            "body": {},
        }

    @given(
        operation=st.text(min_size=1).filter(lambda name: name != CHAT),
        request_id=st.text(min_size=1),
        nnrp=st.builds(
            NnrpOptions,
            timeout_ms=st.none() | st.integers(0, 2**53),
            deadline_ms=st.none() | st.integers(0, 2**53),
            diagnostics=st.booleans(),
            credit=st.none() | st.integers(0, 2**31),
            traceparent=st.none() | st.text(),
            openai_chunk=st.none()
            | st.builds(
                ChunkOptions,
                reasoning=st.sampled_from(["reasoning_content", "reasoning", "both"]),
                model=st.none() | st.text(),
                usage=st.sampled_from(["null", "absent"]),
                terminal=st.sampled_from(["full", "brief"]),
            ),
        ),
        body=st.dictionaries(st.text(), st.none() | st.integers(-(2**53), 2**53) | st.text()),
    )
    def test_what_is_encoded_is_decoded(
        self, operation: str, request_id: str, nnrp: NnrpOptions, body: dict[str, Any]
    ) -> None:
        payload = encode_envelope(
            operation, json.dumps(body).encode(), request_id=request_id, nnrp=nnrp
        )
        assert decode_envelope(payload, frame_id=1) == Envelope(operation, request_id, body, nnrp)

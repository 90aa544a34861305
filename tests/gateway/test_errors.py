import json

import pytest

from gateway.errors import DEFAULT_RETRY_AFTER_MS, ApiError, from_profile, from_terminal
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.protocol.constants import DropReason
from tests.support.fake_worker import LOST, dropped, refusal

SECRET = 'Traceback: /opt/engine/core.py, host gpu-7: "CUDA error"'


class TestBody:
    def test_openais_envelope_whole(self) -> None:
        error = ApiError(400, "m", code=None, param="max_tokens")
        assert json.loads(error.body()) == {
            "error": {
                "message": "m",
                "type": "invalid_request_error",
                "param": "max_tokens",
                "code": None,
            }
        }

    def test_it_is_one_line_for_it_also_rides_in_sse(self) -> None:
        body = ApiError(400, "two\nlines\r\n and \u2028 é").body()
        assert b"\n" not in body
        assert b"\r" not in body
        assert json.loads(body)["error"]["message"] == "two\nlines\r\n and \u2028 é"

    def test_repr(self) -> None:
        assert repr(ApiError.unknown_model("x")) == (
            "<ApiError 404 invalid_request_error/model_not_found: The model `x` does not exist.>"
        )


@pytest.mark.parametrize(
    "error",
    [
        ApiError.unknown_route("GET", "/" + "x" * 10_000),
        ApiError.method_not_allowed("PUT", "/v1/models/" + "x" * 10_000),
        ApiError.unsupported_media_type("x" * 10_000),
        ApiError.unsupported_coding("x" * 10_000),
        ApiError.unknown_model("x" * 10_000),
        ApiError.unsupported_operation("x" * 10_000),
    ],
    ids=lambda error: error.code,
)
def test_a_users_own_words_are_repeated_in_part(error: ApiError) -> None:
    assert "xxx..." in error.message
    assert len(error.message) < 500


class TestHeaders:
    @pytest.mark.parametrize(
        ("ms", "seconds"), [(1, "1"), (999, "1"), (1000, "1"), (1001, "2"), (60_000, "60")]
    )
    def test_retry_after_is_a_whole_number_of_seconds_and_at_least_one(
        self, ms: int, seconds: str
    ) -> None:
        headers = ApiError.overloaded(ms).headers
        assert headers == {"retry-after": seconds, "retry-after-ms": str(ms)}

    def test_what_a_retry_cannot_help_says_so(self) -> None:
        assert ApiError.deadline_expired().headers == {"x-should-retry": "false"}

    def test_no_advice_no_headers(self) -> None:
        assert ApiError(400, "m").headers == {}
        assert ApiError(500, "m", retryable=True).headers == {"x-should-retry": "true"}


class TestFactories:
    @pytest.mark.parametrize(
        ("error", "status", "code"),
        [
            (ApiError.unknown_route("GET", "/x"), 404, "unknown_url"),
            (ApiError.method_not_allowed("PUT", "/v1/models"), 405, "method_not_allowed"),
            (ApiError.body_too_large(10), 413, "request_too_large"),
            (ApiError.unsupported_media_type("text/plain"), 415, "unsupported_media_type"),
            (ApiError.unsupported_coding("gzip"), 415, "unsupported_content_encoding"),
            (ApiError.unknown_model("m"), 404, "model_not_found"),
            (ApiError.unsupported_operation("m"), 404, "unsupported_operation"),
            (ApiError.no_worker(), 503, "no_backend"),
            (ApiError.queue_full(), 429, "rate_limit_exceeded"),
            (ApiError.overloaded(), 503, "overloaded"),
            (ApiError.shutting_down(), 503, "shutting_down"),
            (ApiError.deadline_expired(), 504, "deadline_expired"),
            (ApiError.worker_failed(), 502, "backend_error"),
            (ApiError.worker_lost(), 502, "backend_error"),
            (ApiError.cancelled(), 499, "client_closed_request"),
            (ApiError.internal(), 500, "internal_error"),
        ],
    )
    def test_status_and_code(self, error: ApiError, status: int, code: str) -> None:
        assert (error.status, error.code) == (status, code)
        assert error.type == ("server_error" if status >= 500 else error.type)
        # What asks for patience says how much.
        assert (error.retry_after_ms is not None) == (status in (429, 503))

    def test_an_untyped_body_is_called_that(self) -> None:
        assert "untyped" in ApiError.unsupported_media_type("").message


#: Every code of the profile, and the status and code a user gets.
MAPPED = {
    "unsupported_schema_version": (400, "unsupported_schema_version"),
    "unsupported_operation": (404, "unsupported_operation"),
    "unsupported_model": (404, "model_not_found"),
    "invalid_submit_body": (400, "invalid_submit_body"),
    "invalid_body": (400, "invalid_body"),
    "missing_model": (400, "missing_model"),
    "missing_messages": (400, "missing_messages"),
    "invalid_request_id": (400, "invalid_request_id"),
    "invalid_nnrp_policy": (400, "invalid_nnrp_policy"),
    "invalid_backend_request": (400, "invalid_backend_request"),
    "context_length_exceeded": (400, "context_length_exceeded"),
    "invalid_api_key": (401, "invalid_api_key"),
    "duplicate_operation_id": (500, "internal_error"),
    "backend_overload": (503, "overloaded"),
    "scheduler_rejected": (503, "overloaded"),
    "adapter_operation_limit": (503, "overloaded"),
    "rate_limit_exceeded": (429, "rate_limit_exceeded"),
    "request_timeout": (504, "timeout"),
    "backend_error": (502, "backend_error"),
    "backend_cancelled": (503, "backend_cancelled"),
    "adapter_runtime_error": (502, "backend_error"),
    "result_too_large": (502, "result_too_large"),
    "invalid_tool_call_stream": (502, "backend_error"),
    "tool_call_stream_interrupted": (502, "backend_error"),
}


class TestFromProfile:
    def test_every_code_of_the_profile_is_decided_here(self) -> None:
        assert set(MAPPED) == {code.value for code in ErrorCode}

    @pytest.mark.parametrize("code", MAPPED)
    def test_status_and_code(self, code: str) -> None:
        error = from_profile(ProfileError(code, SECRET))
        assert (error.status, error.code) == MAPPED[code]

    @pytest.mark.parametrize("code", MAPPED)
    def test_the_workers_sentence_is_shown_only_about_the_request(self, code: str) -> None:
        error = from_profile(ProfileError(code, SECRET, param="messages"))
        shown = error.status < 500 and error.status != 429
        assert (error.message == SECRET) is shown
        assert ("CUDA" in str(error.body())) is shown
        assert error.param == ("messages" if error.status < 500 else None)

    @pytest.mark.parametrize(
        "code",
        [
            "runtime_object_unavailable",
            "runtime_object_lease_expired",
            "runtime_object_version_mismatch",
            "runtime_object_dependency_invalid",
            "runtime_object_schema_mismatch",
            "invalid_runtime_object",
        ],
    )
    def test_codes_of_other_adapters(self, code: str) -> None:
        error = from_profile(ProfileError(code, SECRET))
        assert (error.status, error.code) == (400, code)
        assert "CUDA" not in error.message

    @pytest.mark.parametrize("code", ["gpu_on_fire", "", "500", "Bad Code", "x" * 100])
    def test_an_unknown_code_is_a_failed_worker(self, code: str) -> None:
        error = from_profile(ProfileError(code, SECRET, type="server_error"))
        assert (error.status, error.code) == (502, "backend_error")
        assert SECRET not in error.message

    def test_an_unknown_code_about_the_request_is_believed_to_be_that(self) -> None:
        error = from_profile(
            ProfileError("bad_grammar", "no such rule", type="invalid_request_error", param="g")
        )
        assert (error.status, error.code, error.param) == (400, "bad_grammar", "g")
        assert error.message == "no such rule"

    @pytest.mark.parametrize("code", ["Bad Code", "400", "x" * 100, "über"])
    def test_a_code_no_program_would_compare_with_is_left_out(self, code: str) -> None:
        error = from_profile(ProfileError(code, "no", type="invalid_request_error"))
        assert error.code is None

    def test_vllms_sentence_about_the_context_length(self) -> None:
        sentence = "This model's maximum context length is 10 tokens. However, you requested 12."
        error = from_profile(ProfileError("invalid_backend_request", sentence, param="messages"))
        assert (error.status, error.code) == (400, "context_length_exceeded")
        assert error.message == sentence

    def test_a_long_sentence_is_cut(self) -> None:
        error = from_profile(ProfileError("invalid_body", "x" * 100_000))
        assert len(error.message) == 2000

    def test_the_best_advice_wins(self) -> None:
        own = ProfileError("backend_overload", "", retry_after_ms=300)
        assert from_profile(own, retry_after_ms=700).retry_after_ms == 300
        without = ProfileError("backend_overload", "")
        assert from_profile(without, retry_after_ms=700).retry_after_ms == 700
        assert from_profile(without).retry_after_ms == DEFAULT_RETRY_AFTER_MS

    def test_only_what_time_heals_has_advice(self) -> None:
        healed = {code for code in MAPPED if from_profile(ProfileError(code, "")).retry_after_ms}
        assert healed == {
            "adapter_operation_limit",
            "backend_cancelled",
            "backend_overload",
            "rate_limit_exceeded",
            "scheduler_rejected",
        }


class TestFromTerminal:
    def test_an_error_body(self) -> None:
        error = from_terminal(refusal("backend_overload", SECRET, retry_after_ms=250))
        assert (error.status, error.code) == (503, "overloaded")
        assert error.headers == {"retry-after": "1", "retry-after-ms": "250"}
        assert "CUDA" not in error.message

    def test_the_status_code_of_the_wire_decides_nothing(self) -> None:
        # Public adapters send 500 for everything that is not an overload, validation included.
        error = from_terminal(refusal("invalid_body", "no messages", status_code=500))
        assert error.status == 400

    def test_a_number_is_never_a_code(self) -> None:
        body = (
            b'{"type":"response.error","error":{"message":"x","type":"BadRequestError","code":400}}'
        )
        error = from_terminal(Terminal(TerminalKind.RESULT, body=body))
        assert (error.status, error.code) == (502, "backend_error")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"not json",
            b"[]",
            b'{"type":"response.error"}',
            b'{"type":"response.error","error":"Unauthorized"}',
            b'{"type":"response.error","error":{}}',
            b'{"type":7}',
        ],
    )
    def test_what_cannot_be_read_is_a_failed_worker(self, body: bytes) -> None:
        error = from_terminal(Terminal(TerminalKind.RESULT, body=body))
        assert (error.status, error.code) == (502, "backend_error")

    @pytest.mark.parametrize(
        ("terminal", "status", "code"),
        [
            (LOST, 502, "backend_error"),
            (Terminal(TerminalKind.FAILED, diagnostic=SECRET), 502, "backend_error"),
            (dropped(DropReason.DEADLINE_EXPIRED), 504, "deadline_expired"),
            (dropped(DropReason.SUPERSEDED), 409, "superseded"),
            (dropped(DropReason.PEER_CANCELLED), 503, "backend_cancelled"),
            (dropped(DropReason.TRANSPORT_CLOSED), 503, "backend_cancelled"),
            (dropped(DropReason.BACKPRESSURE), 503, "overloaded"),
            (dropped(DropReason.CAPABILITY_MISMATCH), 502, "backend_error"),
            (Terminal(TerminalKind.DROPPED, drop_reason=0x9000), 502, "backend_error"),
            (
                Terminal(TerminalKind.RESULT, body=events.cancelled(SECRET)),
                503,
                "backend_cancelled",
            ),
        ],
    )
    def test_ends_that_are_no_answer(self, terminal: Terminal, status: int, code: str) -> None:
        error = from_terminal(terminal)
        assert (error.status, error.code) == (status, code)
        assert "CUDA" not in error.message

    @pytest.mark.parametrize("reason", [DropReason.DEADLINE_EXPIRED, DropReason.SUPERSEDED])
    def test_what_nobody_wants_any_more_is_not_to_be_retried(self, reason: DropReason) -> None:
        assert from_terminal(dropped(reason)).headers == {"x-should-retry": "false"}

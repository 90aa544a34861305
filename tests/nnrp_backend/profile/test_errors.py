from typing import Any

import pytest

from nnrp_backend.profile.errors import RETRYABLE, ErrorCode, ProfileError


class TestProfileError:
    def test_it_has_the_familiar_shape(self) -> None:
        # The example of the profile's section 10.
        error = ProfileError("unsupported_model", "The requested model is not available.")
        assert error.to_error() == {
            "type": "invalid_request_error",
            "code": "unsupported_model",
            "message": "The requested model is not available.",
        }
        assert str(error) == "The requested model is not available."

    def test_optional_members_appear_when_they_are_known(self) -> None:
        error = ProfileError(
            ErrorCode.BACKEND_OVERLOAD, "Full.", param="model", type="odd_error", retry_after_ms=5
        )
        assert error.to_error() == {
            "type": "odd_error",
            "code": "backend_overload",
            "message": "Full.",
            "param": "model",
            "retry_after_ms": 5,
        }

    @pytest.mark.parametrize(
        ("code", "type_"),
        [
            (ErrorCode.MISSING_MESSAGES, "invalid_request_error"),
            (ErrorCode.CONTEXT_LENGTH_EXCEEDED, "invalid_request_error"),
            (ErrorCode.INVALID_API_KEY, "invalid_request_error"),
            (ErrorCode.RATE_LIMIT_EXCEEDED, "rate_limit_error"),
            (ErrorCode.REQUEST_TIMEOUT, "timeout_error"),
            (ErrorCode.BACKEND_ERROR, "server_error"),
            (ErrorCode.BACKEND_OVERLOAD, "server_error"),
            ("a_code_of_a_peer", "server_error"),
        ],
    )
    def test_the_type_follows_from_the_code(self, code: str, type_: str) -> None:
        assert ProfileError(code, "x").type == type_

    @pytest.mark.parametrize("code", list(ErrorCode))
    def test_codes_are_plain_strings(self, code: ErrorCode) -> None:
        error = ProfileError(code, "x")
        assert type(error.code) is str
        assert error.code == code

    def test_some_may_be_tried_again(self) -> None:
        assert ProfileError("scheduler_rejected", "x").retryable
        assert not ProfileError("backend_error", "x").retryable
        assert not ProfileError("invalid_body", "x").retryable
        assert {"backend_overload", "request_timeout", "adapter_operation_limit"} <= RETRYABLE

    def test_repr_says_what_and_why(self) -> None:
        error = ProfileError("backend_error", "It broke.")
        assert repr(error) == "<ProfileError server_error/backend_error: It broke.>"


class TestFromError:
    def test_it_is_the_inverse(self) -> None:
        error = ProfileError("rate_limit_exceeded", "Wait.", param="x", retry_after_ms=20)
        assert ProfileError.from_error(error.to_error()).to_error() == error.to_error()

    def test_a_peers_own_code_is_kept(self) -> None:
        error = ProfileError.from_error({"type": "t", "code": "theirs", "message": "m"})
        assert (error.type, error.code, error.message) == ("t", "theirs", "m")

    @pytest.mark.parametrize(
        ("odd", "message"),
        [
            (None, "The worker reported an error."),
            ("it broke", "it broke"),
            ({}, "The worker reported backend_error."),
            (
                {"code": 500, "message": None, "retry_after_ms": "x"},
                "The worker reported backend_error.",
            ),
        ],
    )
    def test_anything_is_taken(self, odd: Any, message: str) -> None:
        error = ProfileError.from_error(odd)
        assert (error.code, error.message) == ("backend_error", message)
        assert error.retry_after_ms is None


def backend(type_: Any, message: str = "m", **members: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, **members}}


class TestFromBackend:
    @pytest.mark.parametrize(
        ("body", "code"),
        [
            # vLLM's own types, and the phrases it uses for errors that name a status.
            (backend("BadRequestError", code=400), "invalid_backend_request"),
            (backend("UnprocessableEntityError"), "invalid_backend_request"),
            (backend("NotFoundError", code=404), "unsupported_model"),
            (backend("InternalServerError", code=500), "backend_error"),
            (backend("ServiceUnavailableError"), "backend_overload"),
            (backend("Service Unavailable", code=503), "backend_overload"),
            (backend("NotImplementedError"), "invalid_backend_request"),
            ({"error": "Unauthorized"}, "invalid_api_key"),
            # OpenAI's.
            (backend("invalid_request_error", code="model_not_found"), "unsupported_model"),
            (backend("invalid_request_error", code=None), "invalid_backend_request"),
            (backend("requests", code="rate_limit_exceeded"), "rate_limit_exceeded"),
            (backend("server_error"), "backend_error"),
            # Ours, from an engine that speaks it.
            (backend(None, code="scheduler_rejected"), "scheduler_rejected"),
            # The inside of `error`, and things that say nothing.
            ({"message": "m", "type": "NotFoundError"}, "unsupported_model"),
            ({}, "backend_error"),
            ("boom", "backend_error"),
            (7, "backend_error"),
        ],
    )
    def test_codes(self, body: Any, code: str) -> None:
        assert ProfileError.from_backend(body).code == code

    def test_a_prompt_that_is_too_long_is_told_apart(self) -> None:
        said = "This model's maximum context length is 10 tokens. However, you ..."
        error = ProfileError.from_backend(
            backend("BadRequestError", said, param="messages", code=400)
        )
        assert error.to_error() == {
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
            "message": said,
            "param": "messages",
        }

    @pytest.mark.parametrize(
        "message",
        ["too many cooks", "the overload test", "user asked to cancel or abort", "rate limit"],
    )
    def test_words_in_a_message_are_not_taken_for_causes(self, message: str) -> None:
        assert (
            ProfileError.from_backend(backend("InternalServerError", message)).code
            == "backend_error"
        )
        said = ProfileError.from_backend(backend("BadRequestError", message))
        assert said.code == "invalid_backend_request"

    def test_the_context_length_counts_only_in_a_refusal(self) -> None:
        said = "failed near the maximum context length"
        assert (
            ProfileError.from_backend(backend("InternalServerError", said)).code == "backend_error"
        )

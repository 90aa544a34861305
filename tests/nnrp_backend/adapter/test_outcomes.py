import pytest

from nnrp_backend.adapter.outcomes import Outcome, cancelled_for, refuse, status_code
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.protocol.constants import CancelReason, DropReason
from tests.support.operations import FakeOperation


@pytest.mark.parametrize(
    ("reason", "answer"),
    [
        (CancelReason.USER_CANCELLED, (Outcome.CANCELLED, DropReason.PEER_CANCELLED)),
        (CancelReason.UNSPECIFIED, (Outcome.CANCELLED, DropReason.PEER_CANCELLED)),
        (CancelReason.DEPENDENCY_FAILED, (Outcome.CANCELLED, DropReason.PEER_CANCELLED)),
        (CancelReason.SUPERSEDED, (Outcome.SUPERSEDED, DropReason.SUPERSEDED)),
        (CancelReason.DEADLINE_EXPIRED, (Outcome.EXPIRED, DropReason.DEADLINE_EXPIRED)),
        (CancelReason.BUDGET, (Outcome.CANCELLED, DropReason.BUDGET_EXCEEDED)),
        (CancelReason.TRANSPORT_CLOSING, (Outcome.LOST, DropReason.TRANSPORT_CLOSED)),
        (1234, (Outcome.CANCELLED, DropReason.PEER_CANCELLED)),
    ],
)
def test_each_reason_has_its_answer(reason: int, answer: tuple[Outcome, DropReason]) -> None:
    assert cancelled_for(reason) == answer


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REQUEST_TIMEOUT, 504),
        (ErrorCode.BACKEND_OVERLOAD, 503),
        (ErrorCode.SCHEDULER_REJECTED, 503),
        (ErrorCode.MISSING_MODEL, 400),
        (ErrorCode.BACKEND_ERROR, 500),
        (ErrorCode.RESULT_TOO_LARGE, 500),
    ],
)
def test_status_codes(code: ErrorCode, status: int) -> None:
    assert status_code(ProfileError(code, "x")) == status


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (ProfileError(ErrorCode.BACKEND_OVERLOAD, "full"), [("retry_after", 1000)]),
        (
            ProfileError(ErrorCode.BACKEND_OVERLOAD, "full", retry_after_ms=5),
            [("retry_after", 5)],
        ),
        (ProfileError(ErrorCode.BACKEND_ERROR, "broken"), []),
    ],
    ids=str,
)
def test_a_refusal_advises_where_a_retry_helps(
    error: ProfileError, sent: list[tuple[str, int]]
) -> None:
    operation = FakeOperation(b"")
    refuse(operation, error)  # type: ignore[arg-type]
    assert operation.sent[:-1] == sent
    assert operation.error["code"] == error.code

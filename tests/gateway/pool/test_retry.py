import pytest

from gateway.pool.retry import is_death, is_refusal
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.protocol.constants import DropReason
from tests.support.fake_worker import LOST, answer, dropped, refusal

FAILED = Terminal(TerminalKind.FAILED)


@pytest.mark.parametrize(
    "terminal", [LOST, dropped(DropReason.TRANSPORT_CLOSED), dropped(DropReason.PEER_CANCELLED)]
)
def test_a_worker_that_went_away(terminal: Terminal) -> None:
    assert is_death(terminal)
    assert not is_refusal(terminal)


@pytest.mark.parametrize(
    "terminal",
    [
        answer(),
        FAILED,
        refusal("backend_overload"),
        dropped(DropReason.DEADLINE_EXPIRED),
        dropped(DropReason.SUPERSEDED),
        dropped(DropReason.BACKPRESSURE),
    ],
)
def test_ends_that_are_no_death(terminal: Terminal) -> None:
    assert not is_death(terminal)


@pytest.mark.parametrize(
    "code", ["scheduler_rejected", "backend_overload", "adapter_operation_limit"]
)
def test_a_worker_without_room(code: str) -> None:
    assert is_refusal(refusal(code))


@pytest.mark.parametrize(
    "terminal",
    [
        answer(),
        answer("scheduler_rejected"),
        answer("x" * 10_000),
        FAILED,
        refusal("backend_error"),
        refusal("request_timeout"),
        refusal("invalid_body"),
        Terminal(TerminalKind.RESULT),
        Terminal(TerminalKind.RESULT, body=b"not json"),
        Terminal(TerminalKind.RESULT, body=b'{"type":"response.error"}'),
        Terminal(TerminalKind.RESULT, body=events.cancelled("backend_overload")),
    ],
)
def test_ends_that_are_no_refusal(terminal: Terminal) -> None:
    assert not is_refusal(terminal)

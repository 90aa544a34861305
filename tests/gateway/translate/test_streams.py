import json

import pytest

from gateway.errors import ApiError
from gateway.translate.streams import DONE, KEEP_ALIVE, ChatStream, sse
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from nnrp_backend.profile.errors import ProfileError
from nnrp_backend.profile.events import Event
from nnrp_backend.protocol.constants import DropReason
from tests.support.fake_worker import LOST, answer, dropped, refusal


class Stream(ChatStream):
    """A stream that has one thing to say at its end."""

    def _complete(self, event: Event | None) -> bytes:
        if event is not None and bytes(event.body) == b"{}":
            raise ProfileError("backend_error", "cut at /secret/path")
        return sse(b'"rest"')


def error_in(out: bytes) -> dict[str, object]:
    head, done, rest = out.partition(DONE)
    assert (done, rest) == (DONE, b"")
    assert head.startswith(b"data: ")
    assert head.endswith(b"\n\n")
    return json.loads(head[len(b"data: ") :])["error"]


def test_framing() -> None:
    assert sse(b"{}") == b"data: {}\n\n"
    assert DONE == b"data: [DONE]\n\n"


def test_keep_alive_is_a_comment() -> None:
    assert KEEP_ALIVE.startswith(b":")
    assert KEEP_ALIVE.endswith(b"\n\n")
    assert KEEP_ALIVE.count(b"\n") == 2


@pytest.mark.parametrize("terminal", [answer(), Terminal(TerminalKind.RESULT)])
def test_a_good_end(terminal: Terminal) -> None:
    stream = Stream()
    assert stream.end(terminal) == sse(b'"rest"') + DONE
    assert stream.error is None


@pytest.mark.parametrize(
    ("terminal", "code"),
    [
        (refusal("backend_error", "/secret/path"), "backend_error"),
        (refusal("backend_overload"), "overloaded"),
        (LOST, "backend_error"),
        (Terminal(TerminalKind.FAILED), "backend_error"),
        (dropped(DropReason.DEADLINE_EXPIRED), "deadline_expired"),
        (Terminal(TerminalKind.RESULT, body=events.cancelled("shutdown")), "backend_cancelled"),
        (Terminal(TerminalKind.RESULT, body=b"not json"), "backend_error"),
        (Terminal(TerminalKind.RESULT, body=b'{"type":"response.usage"}'), "backend_error"),
        (Terminal(TerminalKind.RESULT, body=events.completed(b"{}")), "backend_error"),
    ],
)
def test_an_error_goes_in_band_and_done_follows(terminal: Terminal, code: str) -> None:
    stream = Stream()
    error = error_in(stream.end(terminal))
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}
    assert "secret" not in str(error)
    assert stream.error is not None
    assert stream.error.code == code


def test_it_ends_once() -> None:
    stream = Stream()
    assert error_in(stream.fail(ApiError.internal()))["code"] == "internal_error"
    assert stream.fail(ApiError.worker_failed()) == b""
    assert stream.end(answer()) == b""
    assert stream.error is None, "whoever calls fail knows the error"
    good = Stream()
    good.end(answer())
    assert good.end(answer()) == good.fail(ApiError.internal()) == b""
    assert good.error is None

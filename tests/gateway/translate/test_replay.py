import json

import pytest

from gateway.errors import ApiError
from gateway.translate.replay import ReplayStream
from gateway.translate.streams import DONE
from gateway.translate.usage import Usage
from nnrp_backend.client import Terminal, TerminalKind
from nnrp_backend.profile import events
from tests.support import chat_chunks as upstream
from tests.support.fake_worker import LOST

WHOLE = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'


def replayed(*bodies: bytes) -> bytes:
    stream = ReplayStream()
    return b"".join(map(stream.feed, bodies))


def test_a_chunk_is_copied_byte_for_byte() -> None:
    chunk = b'{ "odd" : "spacing", "x_engine":null,"n":1e2 }'
    assert replayed(events.text_delta(0, "hi", chunk)) == b"data: " + chunk + b"\n\n"


def test_every_upstream_chunk_once_and_in_order() -> None:
    chunks = [
        upstream.role(content=None),
        *upstream.reasoning("hm"),
        *upstream.call(0, "c1", "f", '{"a"', ":1}"),
        *upstream.call(1, "c2", "g", "{}"),
        upstream.finish("tool_calls"),
    ]
    told, _ = upstream.worker_events(chunks)
    assert len(told) > len(chunks), "some events bring no chunk"
    assert replayed(*told) == b"".join(b"data: %b\n\n" % chunk for chunk in chunks)


def test_events_without_a_chunk_say_nothing_new() -> None:
    chunk = upstream.role()
    assert (
        replayed(
            events.text_delta(0, "", chunk),
            events.text_delta(0, "hi"),
            events.tool_completed(0, "i", "c", "f", "{}"),
            events.diagnostics({"queue_delay_ms": 3}),
            b'{"type":"response.something_new","index":{}}',
        )
        == b"data: " + chunk + b"\n\n"
    )


def test_what_is_not_content_may_come_before_the_first_chunk() -> None:
    told = events.diagnostics({"queue_delay_ms": 3}), b'{"type":"response.something_new"}'
    assert replayed(*told) == b""


@pytest.mark.parametrize(
    "body",
    [
        events.text_delta(0, "hi"),
        events.tool_started(0, "i", "c", "f"),
        events.tool_delta(0, "i", "c", "{}"),
        events.tool_completed(0, "i", "c", "f", "{}"),
    ],
)
def test_content_before_any_chunk_is_not_what_the_worker_declares(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        replayed(body)
    assert (caught.value.status, caught.value.code) == (502, "backend_error")


@pytest.mark.parametrize("end", [b"", events.completed(b"{}"), events.completed(WHOLE)])
def test_an_end_without_any_chunk_is_no_empty_stream(end: bytes) -> None:
    stream = ReplayStream()
    out = stream.end(Terminal(TerminalKind.RESULT, end))
    error, done = out.split(b"\n\n")[:2]
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "backend_error"
    assert done == b"data: [DONE]"
    assert stream.error is not None


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_a_line_end_inside_is_refused(line_end: bytes) -> None:
    chunk = b'{"a":1,' + line_end + b'"b":2}'
    with pytest.raises(ApiError) as caught:
        replayed(events.text_delta(0, "hi", chunk))
    assert caught.value.code == "backend_error"


def test_an_escaped_line_end_is_data() -> None:
    chunk = upstream.text("two\nlines\r\n")[0]
    assert replayed(events.text_delta(0, "x", chunk)) == b"data: " + chunk + b"\n\n"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"type":3}', b"\xff"])
def test_what_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        replayed(body)
    assert caught.value.status == 502


def test_usage_is_read_from_the_event_and_from_the_end() -> None:
    told, completed = upstream.worker_events(
        [upstream.role(), upstream.finish(), upstream.usage()], include_usage=True
    )
    stream = ReplayStream()
    out = b"".join(map(stream.feed, told))
    assert stream.usage == Usage(5, 4)
    assert b'"usage":{' in out
    assert stream.end(Terminal(TerminalKind.RESULT, completed)) == DONE
    assert stream.usage == Usage(5, 4)


def test_usage_that_nobody_asked_for_is_read_from_the_end_only() -> None:
    told, completed = upstream.worker_events([upstream.role(), upstream.finish(), upstream.usage()])
    stream = ReplayStream()
    assert b"usage" not in b"".join(map(stream.feed, told))
    assert stream.usage is None
    stream.end(Terminal(TerminalKind.RESULT, completed))
    assert stream.usage == Usage(5, 4)


def test_an_empty_terminal_is_an_end_like_any_other() -> None:
    stream = ReplayStream()
    stream.feed(events.text_delta(0, "", upstream.role()))
    assert stream.end(Terminal(TerminalKind.RESULT)) == DONE


def test_nothing_after_the_end() -> None:
    stream = ReplayStream()
    assert stream.end(LOST).endswith(DONE)
    assert stream.end(LOST) == b""
    assert stream.feed(events.text_delta(0, "hi", upstream.role())) == b""

"""Hostile input through a real gateway and a real worker: what it gets, and that others never
notice.

Every answer is JSON in OpenAI's shape, nothing ends in a traceback, and nothing is left running.
"""

import gzip
import json
import socket
from typing import Any

import pytest

from tests.support.http_server import request
from tests.support.stack import CHAT, JSON, Stack, chat_request, check_error, sse

MIB = 1024 * 1024
ONE = '{"model":"sim","messages":[{"role":"user","content":"hello"}]'
"""The beginning of a good request."""


# --- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "members"),
    [
        (b"", {"code": "json_invalid"}),
        (b"{", {"code": "json_invalid"}),
        (b'{"model":', {"code": "json_invalid"}),
        (ONE.encode() + b"}}", {"code": "json_invalid"}),
        (ONE.encode() + b',"a":1,}', {"code": "json_invalid"}),
        (ONE.encode() + b',"a":NaN}', {"code": "json_invalid"}),
        (ONE.encode() + b',"user":"\xff\xfe"}', {"code": "json_invalid"}),
        (ONE.encode() + b',"user":"\\ud800"}', {"code": "json_invalid"}),
        (b"\x00" * 64, {"code": "json_invalid"}),
        (b"\xef\xbb\xbf" + ONE.encode() + b"}", {"code": "json_invalid"}),
        ((ONE + "}").encode("utf-16"), {"code": "json_invalid"}),
        (ONE.encode() + b',"a":Infinity}', {"code": "json_invalid"}),
        (ONE.encode() + b',"a":1e400}', {}),
        (b"model=sim&messages=hello", {"code": "json_invalid"}),
        (b"[]", {"code": "invalid_type"}),
        (b'"hello"', {"code": "invalid_type"}),
        (b"null", {"code": "invalid_type"}),
        (b"{}", {"code": "missing_required_parameter"}),
        (ONE.encode() + b',"model":"other"}', {"code": "duplicate_field"}),
        (ONE.encode() + b',"metadata":{"a":1,"a":2}}', {"code": "duplicate_field"}),
        (ONE.encode() + b',"x":' + b"[" * 100 + b"]" * 100 + b"}", {"code": "json_too_deep"}),
        (ONE.encode() + b',"x":' + b"[" * MIB + b"]" * MIB + b"}", {"code": "json_too_deep"}),
        (ONE.encode() + b',"x":' + b'{"a":' * MIB, {}),
    ],
    ids=lambda value: repr(value)[-40:] if isinstance(value, bytes) else "",
)
def test_a_body_that_is_not_a_json_object(
    system: Stack, body: bytes, members: dict[str, Any]
) -> None:
    answer = system.ask("POST", CHAT, body, headers=JSON)

    check_error(answer, 400, type="invalid_request_error", **members)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": ...}, "model"),
        ({"model": 7}, "model"),
        ({"model": None}, "model"),
        ({"messages": ...}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "nobody", "content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        (
            {"stream": True, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage",
        ),
        ({"stream_options": []}, "stream_options"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"n": "2"}, "n"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"stop": 5}, "stop"),
        ({"tools": "hammer"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"response_format": "json"}, "response_format"),
        ({"seed": "lucky"}, "seed"),
    ],
    ids=str,
)
def test_a_member_that_is_missing_or_ill_typed(
    system: Stack, change: dict[str, Any], param: str
) -> None:
    good = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}
    body = {name: value for name, value in (good | change).items() if value is not ...}

    answer = system.ask("POST", CHAT, json.dumps(body).encode(), headers=JSON)

    check_error(answer, 400, type="invalid_request_error", param=param)


@pytest.mark.parametrize(
    "change",
    [
        {"stream": None, "stream_options": {"include_usage": True}},
        {"stream": False, "stream_options": {"include_usage": True}},
        {"stream_options": None},
        {"max_tokens": 2**32 - 1},
        dict.fromkeys(("tools", "stop", "n", "max_tokens", "temperature", "response_format")),
    ],
    ids=str,
)
def test_a_member_that_is_odd_and_right(system: Stack, change: dict[str, Any]) -> None:
    good = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}

    status, headers, body = system.ask(
        "POST", CHAT, json.dumps(good | change).encode(), headers=JSON
    )

    assert (status, headers["content-type"]) == (200, "application/json"), body


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_nobody_serves(system: Stack, stream: bool) -> None:
    with system.connect() as client:
        client.sock.sendall(chat_request("hello", stream=stream, model="no/such-model"))
        answer = client.read_response()

    check_error(answer, 404, code="model_not_found", param="model")


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_fails_before_the_first_event(system: Stack, stream: bool) -> None:
    with system.connect() as client:
        client.sock.sendall(chat_request("hello", stream=stream, model="backend-error"))
        answer = client.read_response()

    error = check_error(answer, 502, type="server_error", code="backend_error")
    # What the worker says of itself stays inside.
    assert error["message"] == "The worker failed while it was answering."


# --- size -----------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused_before_it_is_read(system: Stack) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\n{JSON}content-length: {33 * MIB}\r\n\r\n"
    with system.connect() as client:
        client.sock.sendall(head.encode())  # and not one byte of the body
        answer = client.read_response()

    check_error(answer, 413, code="request_too_large")


def test_a_client_that_sends_its_whole_large_body_hears_the_answer(system: Stack) -> None:
    with system.connect() as client:
        client.sock.sendall(request("POST", CHAT, bytes(33 * MIB), headers=JSON))
        answer = client.read_response()

    check_error(answer, 413, code="request_too_large")


def test_a_body_without_a_length_is_cut_off_at_the_limit(system: Stack) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
    piece = b"%x\r\n%s\r\n" % (MIB, bytes(MIB))
    with system.connect() as client:
        client.sock.sendall(head.encode())
        for _ in range(33):
            client.sock.sendall(piece)
        answer = client.read_response()

    check_error(answer, 413, code="request_too_large")


def test_a_body_under_the_limit_is_served(system: Stack) -> None:
    padding = "x" * (31 * MIB)
    with system.connect() as client:
        client.sock.sendall(chat_request("/sim tokens=1", user=padding))
        status, _, body = client.read_response()

    assert status == 200, body


@pytest.mark.parametrize(
    "headers",
    [
        "content-length: -1\r\n",
        "content-length: ten\r\n",
        f"content-length: {'9' * 5000}\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "bad header\r\n",
        "x\x00y: 1\r\n",
    ],
    ids=lambda headers: headers[:40],
)
def test_headers_that_are_not_http(system: Stack, headers: str) -> None:
    with system.connect() as client:
        client.sock.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: test\r\n{headers}\r\n".encode())
        check_error(client.read_response(), 400, type="invalid_request_error")
        assert client.read_to_end() == b""


@pytest.mark.parametrize("chunks", [b"zz\r\n\r\n", b"5\r\nhello, you\r\n", b"-1\r\n"])
def test_a_body_whose_chunks_are_none_is_cut_off(system: Stack, chunks: bytes) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
    with system.connect() as client:
        client.sock.sendall(head.encode() + chunks)
        answer = client.read_to_end()

    assert answer == b"" or answer.split(b" ")[1] == b"400"


@pytest.mark.parametrize(
    "head",
    [
        f"x-long: {'x' * MIB}\r\n\r\n",
        f"x-long: {'x' * MIB}",  # and it never ends
        "".join(f"x-{n}: {'x' * 64}\r\n" for n in range(20_000)),
    ],
    ids=["one header", "an endless header", "many headers"],
)
def test_headers_without_a_bound(system: Stack, head: str) -> None:
    with system.connect() as client:
        try:
            client.sock.sendall(f"GET /health HTTP/1.1\r\nhost: test\r\n{head}".encode())
            answer = client.read_to_end()
        except (BrokenPipeError, ConnectionResetError):
            answer = b""  # cut off while still sending, which may cost the answer

    assert answer == b"" or answer.split(b" ")[1] == b"431"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_http_1_0_gets_what_it_can_read(system: Stack, stream: bool) -> None:
    with system.connect() as client:
        client.sock.sendall(chat_request("/sim tokens=2", stream=stream).replace(b"1.1", b"1.0", 1))
        _, headers = client.read_head()
        body = client.read_to_end()

    assert "transfer-encoding" not in headers
    if stream:
        assert sse(body)[-1] == "[DONE]"
    else:
        assert json.loads(body)["choices"][0]["message"]["content"].split() == ["tok0", "tok1"]


@pytest.mark.parametrize(
    "bytes_", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"NNRP" + bytes(60), b"\r\n" * 100]
)
def test_another_protocol_on_the_public_port(system: Stack, bytes_: bytes) -> None:
    with system.connect() as client:
        client.sock.sendall(bytes_)
        client.sock.shutdown(socket.SHUT_WR)
        client.read_to_end()

    assert system.ask("GET", "/health")[0] == 200


# --- routes, methods, types ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1"),
        ("POST", "/v1/chat/completion"),
        ("POST", "/v1/completions/../chat"),
        ("GET", "/v1//models"),
        ("GET", "/metrics"),
        ("GET", "/%00"),
        ("GET", "/" + "a" * 5000),
        ("OPTIONS", "/nowhere"),
    ],
)
def test_a_route_that_is_not_there(system: Stack, method: str, path: str) -> None:
    check_error(system.ask(method, path), 404, code="unknown_url")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, {"POST"}),
        ("PUT", CHAT, {"POST"}),
        ("DELETE", CHAT, {"POST"}),
        ("OPTIONS", CHAT, {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
    ],
)
def test_a_method_that_the_route_does_not_answer(
    system: Stack, method: str, path: str, allowed: set[str]
) -> None:
    answer = system.ask(method, path)

    check_error(answer, 405, code="method_not_allowed")
    assert set(answer[1]["allow"].split(", ")) == allowed


def test_a_method_that_http_does_not_have(system: Stack) -> None:
    # The parser refuses it before there is a route.
    check_error(system.ask("BREW", CHAT), 405, code="method_not_allowed")


@pytest.mark.parametrize(
    ("path", "expected"), [("/v1/models", 200), ("/nowhere", 404), (CHAT, 405)]
)
def test_head_has_the_headers_and_no_body(system: Stack, path: str, expected: int) -> None:
    with system.connect() as client:
        client.sock.sendall(request("HEAD", path) + request("GET", "/health"))
        status, headers = client.read_head()
        following = client.read_response()

    assert (status, headers["content-type"]) == (expected, "application/json")
    assert following[2] == b'{"status":"ok"}'


def test_a_model_that_is_not_there(system: Stack) -> None:
    answer = system.ask("GET", "/v1/models/no/such/model")

    check_error(answer, 404, code="model_not_found", param="model")


@pytest.mark.parametrize(
    "type_", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_body_of_another_type(system: Stack, type_: str) -> None:
    answer = system.ask("POST", CHAT, ONE.encode() + b"}", headers=f"content-type: {type_}\r\n")

    check_error(answer, 415, code="unsupported_media_type")


def test_a_body_that_is_compressed(system: Stack) -> None:
    body = gzip.compress(ONE.encode() + b"}")

    answer = system.ask("POST", CHAT, body, headers=f"{JSON}content-encoding: gzip\r\n")

    check_error(answer, 415, code="unsupported_content_encoding")


@pytest.mark.parametrize("type_", ["application/json; charset=utf-8", "APPLICATION/JSON", ""])
def test_a_body_that_says_it_is_json_in_other_words(system: Stack, type_: str) -> None:
    headers = f"content-type: {type_}\r\n" if type_ else ""

    status, _, body = system.ask("POST", CHAT, ONE.encode() + b"}", headers=headers)

    assert status == 200, body


@pytest.mark.parametrize("id_", ["", "a b", "a\tb", "x" * 200, "<script>", "é"])
def test_a_request_id_that_is_not_well_formed_is_replaced(system: Stack, id_: str) -> None:
    _, headers, _ = system.ask("GET", "/health", headers=f"x-request-id: {id_}\r\n")

    assert headers["x-request-id"].startswith("req_")


# --- requests in pieces and in heaps -------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(system: Stack) -> None:
    with system.connect() as client:
        client.sock.sendall(
            chat_request("/sim tokens=3", stream=True)
            + request("GET", "/v1/models/sim")
            + request("POST", CHAT, b"{", headers=JSON)
            + chat_request("/sim tokens=1")
        )
        stream = client.read_response()
        model = client.read_response()
        refused = client.read_response()
        whole = client.read_response()

    assert stream[2].endswith(b"data: [DONE]\n\n")
    assert json.loads(model[2])["id"] == "sim"
    check_error(refused, 400, code="json_invalid")
    assert json.loads(whole[2])["choices"][0]["message"]["content"].strip() == "tok0"


def test_a_client_that_pipelines_and_leaves(system: Stack) -> None:
    with system.connect() as client:
        client.sock.sendall(chat_request("/sim tokens=1000 delay_ms=20", stream=True) * 5)
        client.read_head()

    system.wait_idle()


@pytest.mark.parametrize("cut", [3, 20, 60, 120, -1])
def test_half_a_request_then_silence(system: Stack, cut: int) -> None:
    whole = chat_request("hello")
    with system.connect() as client:
        client.sock.sendall(whole[:cut])
        # Nobody waits for it, and nobody is told to work on it.
        assert system.ask("GET", "/health")[0] == 200
        assert system.worker_metric("nnrp_backend_operations_in_flight") == 0
        client.sock.sendall(whole[cut:])
        assert client.read_response()[0] == 200


@pytest.mark.parametrize("cut", [20, 120, -1])
def test_half_a_request_then_gone(system: Stack, cut: int) -> None:
    with system.connect() as client:
        client.sock.sendall(chat_request("hello")[:cut])

    system.wait_idle()


def test_a_request_one_byte_at_a_time(system: Stack) -> None:
    with system.connect() as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in chat_request("/sim tokens=1"):
            client.sock.sendall(bytes([byte]))
        status, _, body = client.read_response()

    assert status == 200, body

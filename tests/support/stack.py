"""A whole system of real processes: workers with the sim engine, and a gateway in front."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.http_server import RawClient, request
from tests.support.processes import READY, Running, running

SECONDS = 10.0
"""How long a condition may take to come true. Nothing here is about speed."""

CHAT = "/v1/chat/completions"
JSON = "content-type: application/json\r\n"


class Stack:
    """One gateway and its workers."""

    def __init__(self, gateway: Running, workers: list[Running]) -> None:
        self.gateway = gateway
        self.workers = workers
        lines = [line.split() for line in gateway.stdout]
        self.api = next(line[1] for line in lines if line[:1] == ["API"]).removesuffix("/v1")
        self.admin = next(line[1] for line in lines if line[:1] == ["metrics"])
        self.port = urlsplit(self.api).port
        said = [json.loads(_ready_line(worker).removeprefix(READY)) for worker in workers]
        self.endpoints = [each["listen"][0] for each in said]
        self.worker_admins = [f"{each['admin']}/metrics" for each in said]

    def connect(self) -> RawClient:
        """Open a connection to the public port."""
        assert self.port is not None
        return RawClient(self.port)

    def ask(self, *arguments: Any, **members: Any) -> tuple[int, dict[str, str], bytes]:
        """Send one request on a connection of its own; return its whole answer."""
        with self.connect() as client:
            client.sock.sendall(request(*arguments, **members))
            return client.read_response()

    def chat(self, script: str, *, stream: bool = False) -> RawClient:
        """Send a chat request and return its connection, nothing read yet."""
        client = self.connect()
        client.sock.sendall(chat_request(script, stream=stream))
        return client

    def gateway_metric(self, name: str, **labels: str) -> float:
        return metric(self.admin, name, labels)

    def worker_metric(self, name: str, number: int = 0) -> float:
        return metric(self.worker_admins[number], name, {})

    def wait_idle(self) -> None:
        """Wait until no request and no operation is left anywhere."""
        until(lambda: not self.gateway_metric("nnrp_gateway_requests_in_flight"))
        for number, worker in enumerate(self.workers):
            if worker.process.poll() is None:
                until(lambda n=number: not self.worker_metric("nnrp_backend_engine_running", n))
                until(
                    lambda n=number: not self.worker_metric("nnrp_backend_operations_in_flight", n)
                )

    def check_well(self) -> None:
        """Fail unless the gateway serves a request, and nothing it did ended in a traceback."""
        with self.chat("/sim tokens=2") as client:
            status, _, body = client.read_response()
        assert status == 200, body
        assert json.loads(body)["choices"][0]["message"]["content"].split() == ["tok0", "tok1"]
        for process in (self.gateway, *self.workers):
            assert "Traceback" not in process.log, process.log


def chat_request(script: str, *, stream: bool = False, **members: Any) -> bytes:
    """Write a chat request to the sim model."""
    messages = [{"role": "user", "content": script}]
    body = {"model": "sim", "messages": messages, "stream": stream, **members}
    return request("POST", CHAT, json.dumps(body).encode(), headers=JSON)


def check_error(
    answer: tuple[int, dict[str, str], bytes], status: int, **members: Any
) -> dict[str, Any]:
    """Fail unless an answer is an OpenAI error with this status and these members."""
    got, headers, body = answer
    assert got == status, body
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert {name: error[name] for name in members} == members
    return error


def sse(stream: bytes) -> list[str]:
    """Return the data of each event of a stream, comments left out."""
    events = stream.decode().split("\n\n")
    assert events.pop() == ""
    data = [event for event in events if not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in data)
    return [event.removeprefix("data: ") for event in data]


def metric(url: str, name: str, labels: Mapping[str, str]) -> float:
    """Read one sample of a metrics page; 0 where it has none."""
    wanted = {f'{label}="{value}"' for label, value in labels.items()}
    for line in httpx.get(url).text.splitlines():
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if found and found[1] == name and wanted <= set((found[2] or "").split(",")):
            return float(found[3])
    return 0.0


def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not true within {SECONDS} s"
        time.sleep(0.01)


@contextmanager
def stack(*options: str, workers: int = 1) -> Iterator[Stack]:
    """Run workers on free tcp ports and a gateway in front of them."""
    with ExitStack() as processes:
        serving = [
            processes.enter_context(
                running(
                    "nnrp-backend",
                    *("serve", "--engine", "sim", "--drain-timeout", "1"),
                    *("--listen", "tcp://127.0.0.1:0", "--admin-port", "0"),
                    ready=READY,
                )
            )
            for _ in range(workers)
        ]
        said = [json.loads(_ready_line(worker).removeprefix(READY)) for worker in serving]
        named = [flag for each in said for flag in ("--worker", each["listen"][0])]
        gateway = processes.enter_context(
            running(
                "nnrp-gateway",
                *("serve", "--port", "0", "--admin-port", "0", *named, *options),
                ready="Ctrl-C stops it.",
            )
        )
        yield Stack(gateway, serving)


def _ready_line(worker: Running) -> str:
    return next(line for line in worker.stdout if line.startswith(READY))

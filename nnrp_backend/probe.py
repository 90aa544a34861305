"""Ask a worker what it is and whether it answers, as its clients would."""

import asyncio
import time
from ssl import SSLContext
from typing import Any

import msgspec

from nnrp_backend.client import NnrpClient, Terminal, TerminalKind
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.envelope import encode_envelope
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import EventType, decode_event
from nnrp_backend.profile.operations import CHAT
from nnrp_backend.transport.endpoint import Endpoint


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe of one worker found."""

    endpoint: str
    ok: bool
    """The worker answers, and says about itself what it has to say."""
    problem: str | None
    """Why it is not ok, in one sentence."""
    ours: bool
    """It is a worker of this implementation: credit and drain notices work."""
    connect_ms: float
    answer_ms: float
    """From a request that costs no computing to its answer."""
    in_flight_limit: int
    """Operations that it grants one client at a time."""
    adapter: str | None = None
    levels: tuple[int, ...] = ()
    operations: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


async def probe_worker(
    endpoint: Endpoint, *, ssl: SSLContext | None = None, timeout: float = 5.0
) -> ProbeReport:
    """Connect, ask for the capabilities, and send one request that costs no computing.

    Raises:
        ConnectError: there is no worker, or none that speaks NNRP/1.
        TimeoutError: it does not answer within `timeout` seconds.
    """
    started = time.monotonic()
    async with NnrpClient(endpoint, ssl=ssl, handshake_timeout=timeout) as client:
        connected = time.monotonic()
        record = await client.capabilities(timeout)
        asked = time.monotonic()
        problem = await _problem(client, record, timeout)
        return ProbeReport(
            endpoint=str(endpoint),
            ok=problem is None,
            problem=problem,
            ours=client.peer_is_ours,
            connect_ms=_milliseconds(connected - started),
            answer_ms=_milliseconds(time.monotonic() - asked),
            in_flight_limit=client.granted_in_flight,
            **_offers(record),
        )


async def _problem(
    client: NnrpClient, record: CapabilityRecord | None, timeout: float
) -> str | None:
    """Send a chat without messages; a worker that works refuses it, whatever its models do."""
    chats = record is None or record.serves(CHAT)
    expected = ErrorCode.MISSING_MESSAGES if chats else ErrorCode.UNSUPPORTED_OPERATION
    body = msgspec.json.encode({"model": "probe"})
    payload = encode_envelope(CHAT, body, request_id="probe")
    async with asyncio.timeout(timeout):
        terminal = await client.request(payload)
    code = _error_code(terminal)
    if code == expected:
        return None
    if code is not None:
        return f"a chat without messages was refused with {code}"
    return f"a chat without messages ended as {terminal.kind}"


def _error_code(terminal: Terminal) -> str | None:
    if terminal.kind is not TerminalKind.RESULT or not terminal.body:
        return None
    event = decode_event(terminal.body)
    return ProfileError.from_error(event.error).code if event.type == EventType.ERROR else None


def _offers(record: CapabilityRecord | None) -> dict[str, Any]:
    if record is None:
        return {}
    return {
        "adapter": record.adapter,
        "levels": record.levels,
        "operations": tuple(operation.name for operation in record.operations),
        "models": tuple(str(model["id"]) for model in record.models),
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def render_record(record: CapabilityRecord) -> str:
    """Write a capability record for a person."""
    lines = [("adapter", record.adapter), ("levels", ", ".join(map(str, record.levels)))]
    for operation in record.operations:
        flags = msgspec.structs.asdict(operation)
        able = [flag for flag, value in flags.items() if value is True]
        lines.append(("operation", f"{operation.name} ({', '.join(able)})"))
    lines += [
        ("model", f"{model['id']} (owned by {model.get('owned_by') or 'nobody'})")
        for model in record.models
    ]
    lines += [("extension", extension.name) for extension in record.extensions]
    return _columns(lines)


def render_report(report: ProbeReport) -> str:
    """Write a report for a person."""
    lines = [
        (
            "worker",
            f"{report.endpoint} {'ok' if report.ok else 'is not ok: ' + str(report.problem)}",
        ),
        ("protocol", "NNRP/1, this implementation" if report.ours else "NNRP/1, another's"),
        ("connected", f"in {report.connect_ms:g} ms"),
        ("answered", f"in {report.answer_ms:g} ms"),
        ("in flight", f"{report.in_flight_limit} operations at most"),
    ]
    if report.adapter is not None:
        lines += [
            ("adapter", report.adapter),
            ("levels", ", ".join(map(str, report.levels))),
            ("operations", ", ".join(report.operations)),
            ("models", ", ".join(report.models)),
        ]
    return _columns(lines)


def _columns(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<12}{value}" for name, value in lines)

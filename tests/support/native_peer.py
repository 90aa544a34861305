"""The published `nnrp-py` runtime as a peer, run as a script in a child process.

It is driven by `tests.support.native`: commands come in as JSON lines on stdin, what happens goes
out as JSON lines on stdout. It uses only the public `nnrp.client` and `nnrp.server` of the package.
A payload is JSON; the server role reads its orders from it (see `_serve_operation`).
"""

import asyncio
import contextlib
import hashlib
import json
import os
import queue
import sys
import threading
from typing import Any

from nnrp.client import (
    NativeClientOptions,
    NativeClientProviderRoute,
    NativeClientSessionOptions,
    SubmitIdentity,
    SubmitPolicy,
    SubmitRequest,
    TypedPayloadInputFrame,
    TypedPayloadSubmitInput,
    connect_native_client_connection,
)
from nnrp.core import (
    MessageType,
    PayloadKind,
    ResultClass,
    ResultFlags,
    ResultPushMetadata,
    TransportPolicy,
    build_structured_event_frame,
    pack_body,
    pack_typed_payload_frames,
    unpack_body,
    unpack_typed_payload_frames,
)
from nnrp.native import NativeRuntimeError, NativeWouldBlockError
from nnrp.runtime import (
    ControlRequestMetadata,
    PartialResultMetadata,
    ResultDropReasonCode,
    ResultDropReasonMetadata,
    RuntimeRole,
    TraceContextMetadata,
)
from nnrp.server import (
    NativeServerAcceptOptions,
    NativeServerBootstrapOptions,
    NativeServerProviderRoute,
    NativeServerSessionOptions,
    listen_native_server,
)

#: A poll holds the session's mutex, so that sends wait for it: keep it short.
POLL_MS = 1
#: Bodies longer than this are reported by length and digest.
LONG = 4096

_output = threading.Lock()


def report(kind: str, **fields: Any) -> None:
    with _output:
        print(json.dumps({"event": kind, **fields}), flush=True)


def text(body: bytes) -> dict[str, Any]:
    body = bytes(body)
    if len(body) > LONG:
        return {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return {"size": len(body), "body": body.decode()}


def policy(endpoint: str) -> tuple[str, TransportPolicy]:
    return (
        ("ipc", TransportPolicy.FORCE_IPC)
        if endpoint.startswith("unix:")
        else (
            "tcp",
            TransportPolicy.FORCE_TCP,
        )
    )


def structured(body: bytes) -> bytes:
    descriptors, frames = pack_typed_payload_frames((build_structured_event_frame(body),))
    return pack_body(typed_payload_descriptor_region=descriptors, typed_payload_frame_region=frames)


def payload_of(metadata: Any, body: bytes) -> bytes:
    """The one typed frame of a body, read with the package's own codec."""
    if not body:
        return b""
    view = unpack_body(body)
    [frame] = unpack_typed_payload_frames(
        view.typed_payload_descriptor_region,
        view.typed_payload_frame_region,
        payload_kind_bitmap=metadata.payload_kind_bitmap,
    )
    return bytes(frame.payload)


# --- client role ----------------------------------------------------------------------------------


def run_client(options: dict[str, Any]) -> None:
    """Connect, open one session, then obey `submit`, `cancel`, `close` lines from stdin."""
    name, transport_policy = policy(options["endpoint"])
    native = NativeClientOptions(
        endpoint="nnrp://localhost",
        provider_routes={name: NativeClientProviderRoute(provider_endpoint=options["endpoint"])},
        transport_policy=transport_policy,
        session_defaults=NativeClientSessionOptions(
            max_in_flight_operations=options.get("max_in_flight", 64)
        ),
    )
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    with connect_native_client_connection(native) as connection:
        session = asyncio.run(connection.open_session())
        report("ready", session=session.handle.handle.id)
        sequence = 0
        while True:
            with contextlib.suppress(queue.Empty):
                command = commands.get_nowait()
                if command["do"] == "submit":
                    session.submit_operation(_submit(command))
                elif command["do"] == "cancel":
                    sequence += 1
                    session.cancel_operation(
                        ControlRequestMetadata(
                            command["operation"], sequence, 1, RuntimeRole.CLIENT, 1, 0
                        )
                    )
                elif command["do"] == "close":
                    session.close()
                    report("closed")
                    return
            try:
                events = session.poll_events_batch(max_events=64, timeout_ms=POLL_MS)
            except NativeRuntimeError as error:
                report("poll_error", detail=error.status.detail_code, error=str(error))
                return
            for event in events:
                _report_client_event(event)


def _read_commands(commands: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)  # the test is gone


def _submit(command: dict[str, Any]) -> SubmitRequest:
    payload = command["payload"].encode() + b" " * command.get("pad", 0)
    return SubmitRequest.typed_payload(
        TypedPayloadSubmitInput(
            identity=SubmitIdentity(
                operation_id=command["operation"], frame_id=command["operation"]
            ),
            policy=SubmitPolicy(),
            frames=(
                TypedPayloadInputFrame(
                    profile_id=0, payload_kind=PayloadKind.STRUCTURED_EVENT, payload=payload
                ),
            ),
        )
    )


def _report_client_event(event: Any) -> None:
    if not hasattr(event, "header"):
        report("lifecycle", name=event.kind_name)
        return
    name = event.header.message_type.name
    fields: dict[str, Any] = {
        "frame": event.header.frame_id,
        "operation": getattr(event.metadata.value, "operation_id", None),
    }
    if name == "PARTIAL_RESULT":
        fields |= {"sequence": event.metadata.value.result_sequence, **text(event.tail.body)}
    elif name == "RESULT_PUSH":
        metadata = event.metadata.value
        fields |= {"status": metadata.status_code, **text(payload_of(metadata, event.tail.body))}
    elif name == "RESULT_DROP_REASON":
        fields |= {"reason": int(event.metadata.value.drop_reason_code)}
    report(name, **fields)


# --- server role ----------------------------------------------------------------------------------


async def run_server(options: dict[str, Any]) -> None:
    """Accept sessions until killed; each submit's payload says what to do with it."""
    name, transport_policy = policy(options["endpoint"])
    native = NativeServerBootstrapOptions(
        endpoint="nnrp://localhost",
        provider_routes={name: NativeServerProviderRoute(provider_endpoint=options["endpoint"])},
        transport_policy=transport_policy,
        session_defaults=NativeServerSessionOptions(
            max_in_flight_operations=options.get("max_in_flight", 64),
            granted_operation_credit=options.get("credit", 64),
        ),
    )
    with listen_native_server(native) as server:
        report("ready", bound=[str(e.uri) for e in server.bound_provider_endpoints.values()])
        sessions = set()
        while True:
            try:
                session = await server.accept(NativeServerAcceptOptions(timeout_ms=1000))
            except NativeWouldBlockError:
                continue
            report("session", id=session.handle.handle.id)
            sessions.add(asyncio.ensure_future(_serve_session(session, options)))


async def _serve_session(session: Any, options: dict[str, Any]) -> None:
    cancelled: dict[int, asyncio.Event] = {}
    work = set()
    while True:
        try:
            events = await asyncio.to_thread(session.poll_events, max_events=64, timeout_ms=POLL_MS)
        except NativeRuntimeError as error:
            report("session_ended", detail=error.status.detail_code)
            return
        for event in events:
            if (operation := event.as_submit()) is not None:
                flag = cancelled[operation.operation_id] = asyncio.Event()
                work.add(asyncio.ensure_future(_serve_operation(session, operation, flag)))
            elif (frame := event.as_runtime()) is not None:
                kind = frame.header.message_type
                metadata = frame.metadata.value
                operation_id = getattr(metadata, "operation_id", None)
                report(
                    "runtime",
                    type=kind.name,
                    frame=frame.header.frame_id,
                    operation=operation_id,
                    window=getattr(metadata, "credit_window", None),
                )
                if kind in (MessageType.CANCEL, MessageType.ABORT) and operation_id in cancelled:
                    cancelled[operation_id].set()
                elif kind is MessageType.CAPABILITY_NEGOTIATION and options.get("negotiate"):
                    session.negotiate_capabilities(metadata, frame.tail.body)
                elif kind is MessageType.SESSION_CLOSE:
                    await asyncio.to_thread(session.close)
                    report("session_closed")
                    return
        await asyncio.sleep(0.002)


async def _serve_operation(session: Any, operation: Any, cancelled: asyncio.Event) -> None:
    """Do what the payload orders.

    `n`: so many events, `delay_ms` apart; `result_bytes`: the size of the result's padding;
    `hold`: never end by itself; `crash`: end the process.
    """
    metadata = operation.submit.metadata.value
    payload = payload_of(metadata, operation.submit.tail.body)
    orders = json.loads(payload)
    report("submit", operation=operation.operation_id, frame=operation.frame_id, **text(payload))
    if orders.get("crash"):
        os._exit(9)
    for index in range(orders.get("n", 0)):
        if cancelled.is_set():
            break
        body = json.dumps({"operation": operation.operation_id, "i": index}).encode()
        try:
            await operation.send_partial_result(
                PartialResultMetadata(
                    operation.operation_id, index + 1, 0, index + 1, len(body), 0
                ),
                body,
            )
        except NativeRuntimeError:
            await cancelled.wait()
            break
        if delay := orders.get("delay_ms"):
            await asyncio.sleep(delay / 1000)
    if orders.get("hold"):
        await cancelled.wait()
    if cancelled.is_set():
        session.send_trace_context(TraceContextMetadata(1, 1, 0, 10, 0, 0))
        await operation.send_result_drop(
            ResultDropReasonMetadata(
                operation.operation_id,
                1,
                ResultDropReasonCode.PEER_CANCELLED,
                RuntimeRole.SERVER,
                0,
                4,
            ),
            b"stop",
        )
        report("dropped", operation=operation.operation_id)
        return
    result = b'{"type":"response.completed","pad":"%s"}' % (b"p" * orders.get("result_bytes", 0))
    await operation.send_result(
        ResultPushMetadata(
            status_code=200,
            result_flags=ResultFlags.NONE,
            section_count=0,
            tile_count=0,
            active_profile_id=0,
            reserved0=0,
            inference_ms=0,
            queue_ms=0,
            server_total_ms=0,
            reserved1=0,
            tile_base_id=0,
            tile_index_bytes=0,
            result_class=ResultClass.COMPLETE,
            payload_kind_bitmap=PayloadKind.STRUCTURED_EVENT,
            payload_frame_count=1,
        ),
        structured(result),
    )


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if arguments["role"] == "client":
        run_client(arguments)
    else:
        asyncio.run(run_server(arguments))

"""CREDIT_UPDATE, BACKPRESSURE and FLOW_UPDATE, read into one form.

The protocol has two generations of flow control that say the same. Windows are absolute: a window
replaces the one before it, no window is no limit. Nobody but the sender of the limited frames
enforces them.
"""

from typing import NamedTuple

from nnrp_backend.protocol import control
from nnrp_backend.protocol.constants import (
    FlowFlags,
    FlowReason,
    FlowScope,
    MessageType,
    PressureFlags,
    PressureLevel,
)
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.header import Packet

__all__ = ["Flow", "read_flow"]


class Flow(NamedTuple):
    """What a flow control frame says."""

    scope: FlowScope
    operation_id: int
    """0 unless ``scope`` is an operation."""
    window: int | None
    """``None``: not said."""
    level: int
    reason: int
    """A ``PressureReason``; 0 when it came as a FLOW_UPDATE."""
    retry_after_ms: int
    draining: bool
    epoch: int | None
    """Epoch of a FLOW_UPDATE; older ones are stale. The other two frames have none."""


def read_flow(packet: Packet) -> Flow:
    """Read one of the three frames.

    Raises:
        RemoteProtocolError: the frame contradicts itself, or its header.
    """
    if packet.message_type == MessageType.FLOW_UPDATE:
        flow = _read_flow_update(control.FLOW_UPDATE.unpack(packet.metadata, packet.body))
    else:
        flow = _read_pressure(control.PRESSURE.unpack(packet.metadata, packet.body))
    if flow.scope is not FlowScope.CONNECTION and not packet.session_id:
        raise RemoteProtocolError("only connection scope goes without a session")
    return flow


def _read_pressure(message: control.Pressure) -> Flow:
    match message.flags:
        case PressureFlags.CONNECTION_SCOPE:
            scope = FlowScope.CONNECTION
        case PressureFlags.OPERATION_SCOPE:
            scope = FlowScope.OPERATION
        case PressureFlags.SESSION_SCOPE:
            scope = FlowScope.SESSION
        case _:
            raise RemoteProtocolError("connection and operation scope at once")
    of_operation = scope is FlowScope.OPERATION
    if of_operation and not message.scope_id:
        raise RemoteProtocolError("operation scope without an operation")
    return Flow(
        scope=scope,
        operation_id=message.scope_id if of_operation else 0,
        window=message.credit_window,
        level=message.pressure_level,
        reason=message.pressure_reason,
        retry_after_ms=message.retry_after_ms,
        draining=False,
        epoch=None,
    )


def _read_flow_update(message: control.FlowUpdate) -> Flow:
    if message.scope_kind > FlowScope.OPERATION:
        raise RemoteProtocolError(f"unknown scope {message.scope_kind}")
    scope = FlowScope(message.scope_kind)
    credits = (message.connection_credit, message.session_credit, message.operation_credit)
    if any(credit for kind, credit in zip(FlowScope, credits, strict=True) if kind is not scope):
        raise RemoteProtocolError(f"credit of another scope in an update of scope {scope.name}")
    if bool(message.operation_id) is not (scope is FlowScope.OPERATION):
        raise RemoteProtocolError("an operation is named if, and only if, the scope is one")
    level = message.backpressure_level
    if message.update_reason == FlowReason.PAUSE:
        level = PressureLevel.PAUSED
    return Flow(
        scope=scope,
        operation_id=message.operation_id,
        window=credits[scope] if message.flags & FlowFlags.CREDIT_VALID else None,
        level=level,
        reason=0,
        retry_after_ms=message.retry_after_ms if message.flags & FlowFlags.RETRY_AFTER_VALID else 0,
        draining=bool(message.flags & FlowFlags.DRAIN_IN_FLIGHT_ONLY),
        epoch=message.credit_epoch,
    )

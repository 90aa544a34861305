"""The body of FRAME_SUBMIT and RESULT_PUSH: one structured event in a typed payload frame.

Layout (NNRP/1 wire, FRAME_SUBMIT and RESULT_PUSH body): a prelude of 32 bytes with the sizes of six
regions, then the regions: inline objects, object references, typed payload descriptors (24 bytes
each), typed payload bytes, extension descriptors (16 bytes each), extension payload. Ours has one
descriptor and one payload, so the JSON starts at byte 56.

A public adapter puts bare JSON where this frame belongs; that is understood and never sent.
"""

from typing import Final, NamedTuple

from nnrp_backend.protocol.constants import PayloadKind, StreamSemantics
from nnrp_backend.protocol.errors import RemoteProtocolError
from nnrp_backend.protocol.layout import Layout

__all__ = ["EVENT_OVERHEAD", "pack_event_head", "unpack_event_body"]


class BodyPrelude(NamedTuple):
    """Sizes of the body's regions in bytes."""

    inline_object_bytes: int = 0
    object_reference_bytes: int = 0
    typed_payload_descriptor_bytes: int = 0
    typed_payload_frame_bytes: int = 0
    extension_descriptor_bytes: int = 0
    extension_payload_bytes: int = 0
    body_flags: int = 0
    reserved: int = 0


class PayloadDescriptor(NamedTuple):
    """What one typed payload is and where it lies in the payload region."""

    profile_id: int = 0
    payload_kind: int = PayloadKind.STRUCTURED_EVENT
    descriptor_flags: int = 0
    schema_id: int = 0
    schema_version: int = 0
    stream_semantics: int = StreamSemantics.SNAPSHOT
    reserved: int = 0
    offset: int = 0
    length: int = 0


BODY_PRELUDE: Final = Layout(BodyPrelude, "<8I", zero=("body_flags", "reserved"))
PAYLOAD_DESCRIPTOR: Final = Layout(
    PayloadDescriptor, "<HBBIIHHII", zero=("reserved",), masks={"descriptor_flags": 0x0F}
)
EXTENSION_DESCRIPTOR_BYTES: Final = 16
EVENT_OVERHEAD: Final = BODY_PRELUDE.size + PAYLOAD_DESCRIPTOR.size


def pack_event_head(length: int) -> bytes:
    """Return what precedes a JSON event of ``length`` bytes in a body that holds nothing else."""
    prelude = BodyPrelude(
        typed_payload_descriptor_bytes=PAYLOAD_DESCRIPTOR.size, typed_payload_frame_bytes=length
    )
    return BODY_PRELUDE.pack(prelude) + PAYLOAD_DESCRIPTOR.pack(PayloadDescriptor(length=length))


def unpack_event_body(body: bytes, payload_kinds: int, payload_count: int) -> bytes:
    """Return the JSON event of a body, empty when the body and the metadata say there is none.

    Args:
        body: Body of FRAME_SUBMIT or RESULT_PUSH.
        payload_kinds: ``payload_kind_bitmap`` of the metadata.
        payload_count: ``payload_frame_count`` of the metadata.

    Raises:
        RemoteProtocolError: it is anything but one structured event of profile 0.
    """
    if not body and not payload_kinds and not payload_count:
        return b""
    if (payload_kinds, payload_count) != (PayloadKind.STRUCTURED_EVENT, 1):
        raise RemoteProtocolError(
            f"payload kinds {payload_kinds:#x} in {payload_count} frames, "
            f"must be one structured event"
        )
    if body[:1] == b"{":
        return body
    start, size = _payload_region(body)
    descriptor = PAYLOAD_DESCRIPTOR.unpack(body[start - PAYLOAD_DESCRIPTOR.size : start])
    _check_descriptor(descriptor, size)
    at = start + descriptor.offset
    return body[at : at + descriptor.length]


def _payload_region(body: bytes) -> tuple[int, int]:
    """Return where the payload region starts, and its size."""
    prelude = BODY_PRELUDE.unpack(body[: BODY_PRELUDE.size])
    announced = BODY_PRELUDE.size + sum(prelude)
    if announced != len(body):
        raise RemoteProtocolError(f"the regions add up to {announced} of {len(body)} bytes")
    if prelude.inline_object_bytes or prelude.object_reference_bytes:
        raise RemoteProtocolError("objects are not supported")
    if prelude.typed_payload_descriptor_bytes != PAYLOAD_DESCRIPTOR.size:
        raise RemoteProtocolError(
            f"{prelude.typed_payload_descriptor_bytes} bytes of payload descriptors, "
            f"must be {PAYLOAD_DESCRIPTOR.size}"
        )
    if prelude.extension_descriptor_bytes % EXTENSION_DESCRIPTOR_BYTES:
        raise RemoteProtocolError("extension descriptors are cut")
    return EVENT_OVERHEAD, prelude.typed_payload_frame_bytes


def _check_descriptor(descriptor: PayloadDescriptor, size: int) -> None:
    if descriptor.payload_kind != PayloadKind.STRUCTURED_EVENT:
        raise RemoteProtocolError(
            f"payload kind {descriptor.payload_kind:#x} is no structured event"
        )
    if descriptor.profile_id or descriptor.schema_id or descriptor.schema_version:
        raise RemoteProtocolError("the event is bound to a registered profile or schema")
    # The published SDK says "unspecified" where the profile wants a snapshot.
    if descriptor.stream_semantics not in (StreamSemantics.UNSPECIFIED, StreamSemantics.SNAPSHOT):
        raise RemoteProtocolError(f"stream semantics {descriptor.stream_semantics} is no snapshot")
    if descriptor.offset + descriptor.length > size:
        raise RemoteProtocolError("the payload lies outside its region")

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnrp.core import (
    PayloadKind,
    build_structured_event_frame,
    pack_body,
    pack_typed_payload_frames,
    unpack_body,
    unpack_typed_payload_frames,
)
from nnrp.core.messages import BodyRegionPrelude, TypedPayloadDescriptor

from nnrp_backend.protocol.body import (
    BODY_PRELUDE,
    EVENT_OVERHEAD,
    PAYLOAD_DESCRIPTOR,
    pack_event_head,
    unpack_event_body,
)
from nnrp_backend.protocol.errors import RemoteProtocolError
from tests.support.layouts import check_against_published, messages
from tests.support.protocol import DESCRIPTOR, PRELUDE, typed

EVENT = b'{"type":"response.completed","body":{}}'


@given(event=st.binary(max_size=2000))
def test_the_published_codec_reads_what_we_write(event):
    body = pack_event_head(len(event)) + event
    view = unpack_body(body)
    [frame] = unpack_typed_payload_frames(
        view.typed_payload_descriptor_region,
        view.typed_payload_frame_region,
        payload_kind_bitmap=PayloadKind.STRUCTURED_EVENT,
    )
    assert frame.payload == event
    assert (frame.profile_id, frame.schema_id, frame.schema_version) == (0, 0, 0)
    assert frame.descriptor_flags == 0
    assert frame.stream_semantics == 1  # a snapshot, as the profile wants it


@given(event=st.binary(max_size=2000))
def test_we_read_what_the_published_codec_writes(event):
    descriptors, payload = pack_typed_payload_frames((build_structured_event_frame(event),))
    body = pack_body(
        typed_payload_descriptor_region=descriptors, typed_payload_frame_region=payload
    )
    assert unpack_event_body(body, 0x10, 1) == event


def test_the_json_starts_at_byte_56():
    assert EVENT_OVERHEAD == 56
    assert pack_event_head(len(EVENT)) + EVENT == typed(EVENT)


def test_bare_json_is_understood():
    assert unpack_event_body(EVENT, 0x10, 1) == EVENT


def test_an_empty_success_has_no_event():
    assert unpack_event_body(b"", 0, 0) == b""


@given(data=st.data())
def test_preludes_and_descriptors_are_the_published_ones(data):
    sizes = {name: st.integers(0, 1000).map(lambda n: n * 48) for name in BODY_PRELUDE.fields}
    sizes |= {"body_flags": st.just(0), "reserved": st.just(0)}
    check_against_published(
        BodyRegionPrelude, BODY_PRELUDE, data.draw(messages(BODY_PRELUDE, **sizes))
    )
    descriptor = data.draw(
        messages(
            PAYLOAD_DESCRIPTOR,
            payload_kind=st.sampled_from([2, 4, 8, 16, 32, 64]),
            stream_semantics=st.integers(0, 2),
            profile_id=st.just(0),
        )
    )
    theirs = TypedPayloadDescriptor(
        **{
            name: PayloadKind(value) if name == "payload_kind" else value
            for name, value in descriptor._asdict().items()
            if name != "reserved"
        }
    )
    for name in ("payload_kind", "schema_id", "schema_version", "offset", "length"):
        assert getattr(theirs, name) == getattr(descriptor, name)


def prelude(inline=0, references=0, descriptors=24, payload=0, extensions=0, extra=0, **reserved):
    flags, rest = reserved.get("flags", 0), reserved.get("reserved", 0)
    return PRELUDE.pack(inline, references, descriptors, payload, extensions, extra, flags, rest)


def descriptor(profile=0, kind=0x10, flags=0, schema=0, version=0, semantics=1, **more):
    return DESCRIPTOR.pack(
        profile,
        kind,
        flags,
        schema,
        version,
        semantics,
        more.get("reserved", 0),
        more.get("offset", 0),
        more.get("length", 2),
    )


@pytest.mark.parametrize(
    "body",
    [
        prelude(payload=2) + descriptor() + b"{}",
        prelude(payload=2) + descriptor(semantics=0) + b"{}",
        prelude(payload=2) + descriptor(flags=0x0F) + b"{}",
        prelude(payload=9) + descriptor(offset=7) + b"padding{}",
        prelude(payload=2, extensions=16, extra=5) + descriptor() + b"{}" + bytes(16) + b"extra",
    ],
    ids=["plain", "unspecified", "all flags", "offset", "extension"],
)
class TestTolerated:
    def test_it_is_read(self, body):
        assert unpack_event_body(body, 0x10, 1) == b"{}"

    def test_with_trailing_bytes_it_is_not(self, body):
        with pytest.raises(RemoteProtocolError, match="add up"):
            unpack_event_body(body + b"x", 0x10, 1)

    def test_cut_anywhere_it_is_not(self, body):
        for end in range(1, len(body)):
            with pytest.raises(RemoteProtocolError):
                unpack_event_body(body[:end], 0x10, 1)


@pytest.mark.parametrize(
    ("body", "kinds", "count", "complaint"),
    [
        (b"", 0x10, 1, "metadata is 0 bytes"),
        (b"", 0x10, 0, "one structured event"),
        (b"", 0, 1, "one structured event"),
        (typed(b"{}"), 0, 0, "one structured event"),
        (typed(b"{}"), 0x12, 2, "one structured event"),
        (typed(b"{}"), 0x10, 2, "one structured event"),
        (typed(b"{}"), 0x40, 1, "one structured event"),
        (EVENT, 0, 0, "one structured event"),
        (prelude(inline=2) + descriptor() + b"{}", 0x10, 1, "objects are not supported"),
        (prelude(references=24) + bytes(48), 0x10, 1, "objects are not supported"),
        (prelude(descriptors=0, payload=2) + b"{}", 0x10, 1, "0 bytes of payload descriptors"),
        (prelude(descriptors=48, payload=2) + descriptor() * 2 + b"{}", 0x10, 1, "48 bytes of"),
        (prelude(descriptors=23, payload=2) + bytes(23) + b"{}", 0x10, 1, "23 bytes of"),
        (prelude(payload=2, extensions=8) + descriptor() + b"{}" + bytes(8), 0x10, 1, "are cut"),
        (prelude(payload=2, flags=1) + descriptor() + b"{}", 0x10, 1, "body_flags"),
        (prelude(payload=2, reserved=1) + descriptor() + b"{}", 0x10, 1, "reserved"),
        (prelude(payload=2) + descriptor(kind=0x40) + b"{}", 0x10, 1, "no structured event"),
        (prelude(payload=2) + descriptor(profile=2) + b"{}", 0x10, 1, "bound to a registered"),
        (prelude(payload=2) + descriptor(schema=1) + b"{}", 0x10, 1, "bound to a registered"),
        (prelude(payload=2) + descriptor(version=1) + b"{}", 0x10, 1, "bound to a registered"),
        (prelude(payload=2) + descriptor(semantics=2) + b"{}", 0x10, 1, "no snapshot"),
        (prelude(payload=2) + descriptor(flags=0x10) + b"{}", 0x10, 1, "descriptor_flags"),
        (prelude(payload=2) + descriptor(reserved=1) + b"{}", 0x10, 1, "reserved"),
        (prelude(payload=2) + descriptor(length=3) + b"{}", 0x10, 1, "outside its region"),
        (prelude(payload=2) + descriptor(offset=1) + b"{}", 0x10, 1, "outside its region"),
    ],
)
def test_anything_but_one_plain_event_is_refused(body, kinds, count, complaint):
    with pytest.raises(RemoteProtocolError, match=complaint):
        unpack_event_body(body, kinds, count)


@given(body=st.binary(max_size=200), kinds=st.integers(0, 0x7F), count=st.integers(0, 3))
def test_garbage_is_refused_and_nothing_else(body, kinds, count):
    try:
        event = unpack_event_body(body, kinds, count)
    except RemoteProtocolError:
        return
    assert event == b"" or event in body

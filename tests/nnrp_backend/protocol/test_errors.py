import pytest

from nnrp_backend.protocol.constants import ErrorCode, ErrorScope, MessageType
from nnrp_backend.protocol.errors import (
    LocalProtocolError,
    OperationLimitReached,
    PacketTooLarge,
    PeerReportedError,
    PeerTimeout,
    ProtocolError,
    RemoteProtocolError,
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (LocalProtocolError("no"), "no"),
        (
            OperationLimitReached(7, 4),
            "session 7 has 4 operations in flight, all it may have",
        ),
        (PacketTooLarge(100, 80), "a packet of 100 bytes is over the limit of 80"),
        (RemoteProtocolError("bad"), "bad"),
        (RemoteProtocolError("bad", message_type=MessageType.CANCEL), "CANCEL: bad"),
        (RemoteProtocolError("bad", message_type=0xEE), "message type 0xee: bad"),
        (PeerReportedError(3, "why"), "the peer reported error 0x03: why"),
        (PeerReportedError(3, ""), "the peer reported error 0x03: no details"),
        (PeerTimeout("SESSION_OPEN_ACK", 5.0), "the peer sent no SESSION_OPEN_ACK within 5 s"),
    ],
)
def test_errors_compose_their_own_sentence(error, sentence):
    assert str(error) == sentence
    assert isinstance(error, ProtocolError)


def test_errors_carry_typed_attributes():
    assert (OperationLimitReached(7, 4).session_id, OperationLimitReached(7, 4).granted) == (7, 4)
    assert (PacketTooLarge(100, 80).size, PacketTooLarge(100, 80).limit) == (100, 80)
    assert (PeerReportedError(3, "why").code, PeerReportedError(3, "why").diagnostic) == (3, "why")
    assert (PeerTimeout("bytes", 2.5).awaited, PeerTimeout("bytes", 2.5).seconds) == ("bytes", 2.5)


def test_only_what_concerns_the_connection_is_fatal():
    error = RemoteProtocolError("bad", code=ErrorCode.INVALID_STATE)
    assert error.code is ErrorCode.INVALID_STATE
    assert error.scope is ErrorScope.FRAME
    assert not error.fatal
    error.scope = ErrorScope.CONNECTION
    assert error.fatal


def test_misuse_and_broken_peers_are_different_branches():
    assert not issubclass(RemoteProtocolError, LocalProtocolError)
    assert issubclass(OperationLimitReached, LocalProtocolError)
    assert issubclass(PacketTooLarge, LocalProtocolError)

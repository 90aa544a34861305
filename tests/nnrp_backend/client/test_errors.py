import pytest

from nnrp_backend import client
from nnrp_backend.client import errors


@pytest.mark.parametrize(
    ("error", "sentence", "attributes"),
    [
        (
            errors.ConnectError("tcp://w:1", "refused", session_error=0x10007),
            "cannot connect to tcp://w:1: refused",
            {"endpoint": "tcp://w:1", "reason": "refused", "session_error": 0x10007},
        ),
        (errors.NotConnected("tcp://w:1"), "not connected to tcp://w:1", {"endpoint": "tcp://w:1"}),
        (errors.WorkerDraining("tcp://w:1"), "tcp://w:1 is draining", {"endpoint": "tcp://w:1"}),
        (
            errors.TooManyOperations("tcp://w:1", 4),
            "tcp://w:1 takes no more than 4 operations at a time",
            {"limit": 4},
        ),
        (
            errors.Congested("tcp://w:1", 4, 99),
            "tcp://w:1 has yet to read 99 bytes",
            {"limit": 4, "unsent": 99},
        ),
        (
            errors.PayloadTooLarge(9, 8),
            "a payload of 9 bytes is over the limit of 8",
            {"size": 9, "limit": 8},
        ),
    ],
)
def test_each_error_composes_its_sentence(error, sentence, attributes):
    assert str(error) == sentence
    assert isinstance(error, errors.ClientError)
    for name, value in attributes.items():
        assert getattr(error, name) == value


def test_whoever_handles_the_general_case_handles_the_special_one():
    assert issubclass(errors.WorkerDraining, errors.NotConnected)
    assert issubclass(errors.Congested, errors.TooManyOperations)


def test_every_error_is_exported():
    assert set(errors.__all__) <= set(client.__all__)

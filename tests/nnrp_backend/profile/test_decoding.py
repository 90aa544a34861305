import pytest

from nnrp_backend.profile.decoding import decode_answer
from nnrp_backend.profile.errors import ErrorCode, ProfileError


def test_a_fit_answer_is_told_so() -> None:
    assert decode_answer(b'{"a":"\xc3\xa9"}') == ({"a": "\u00e9"}, False)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a":\n1}', 1),
        (b'{"a":1}\r', 1),
        (b'{"a":"\xffx"}', "\ufffdx"),
        (b'{"a":"\xed\xa0\x80"}', "\ufffd\ufffd\ufffd"),
        (b'{"a":"x\ny\x01"}', "x\ny\x01"),
        (b'{"a":"\\ud800x"}', "?x"),
        (b'{"a":NaN}', None),
        (b'{"a":-Infinity}', None),
    ],
)
def test_what_can_be_mended_is(data: bytes, value: object) -> None:
    assert decode_answer(data) == ({"a": value}, True)


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b'"x"', b"{", b"[" * 100_000, b'{"a":1}{'])
def test_the_rest_is_a_backend_error(data: bytes) -> None:
    with pytest.raises(ProfileError) as caught:
        decode_answer(data)
    assert caught.value.code == ErrorCode.BACKEND_ERROR


def test_an_error_body_is_raised_as_what_it_says() -> None:
    with pytest.raises(ProfileError, match="no such model") as caught:
        decode_answer(b'{"error":{"message":"no such model","type":"NotFoundError"}}')
    assert caught.value.code == ErrorCode.UNSUPPORTED_MODEL


@pytest.mark.parametrize("falsy", [b"null", b"{}", b'""', b"false"])
def test_an_error_that_says_nothing_is_none(falsy: bytes) -> None:
    tree, _ = decode_answer(b'{"error":%b}' % falsy)
    assert tree.keys() == {"error"}

import pytest

from gateway.translate.completed import CompletedBody, read_body, usage_of

BODY = (
    b'{"id":"c","choices":[{"index":0,"finish_reason":"stop","message":{"content":"hi"}}],'
    b'"usage":{"prompt_tokens":1}}'
)


def test_a_whole_body() -> None:
    body = read_body(BODY)
    assert body.choices[0].finish_reason == "stop"
    assert body.choices[0].message == {"content": "hi"}
    assert bytes(body.usage) == b'{"prompt_tokens":1}'
    assert bytes(usage_of(BODY)) == b'{"prompt_tokens":1}'


def test_the_brief_form_has_no_messages() -> None:
    body = read_body(b'{"choices":[{"index":1,"finish_reason":"length"}]}')
    assert (body.choices[0].index, body.choices[0].message) == (1, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"object":"chat.completion.stream","status":"completed"}',
        b'{"choices":"many"}',
        b'{"choices":[{"index":"0"}]}',
    ],
)
def test_stubs_and_nonsense_are_as_good_as_absent(body: bytes) -> None:
    assert read_body(body) == CompletedBody()
    assert not usage_of(body)

import json

import pytest

from gateway.translate.usage import Usage, chat_usage, read_usage

CHAT = b'{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}'
PROFILE = b'{"input_tokens":5,"output_tokens":4,"total_tokens":9}'


def test_both_ways_of_naming() -> None:
    assert read_usage(CHAT) == read_usage(PROFILE) == Usage(5, 4)


def test_cached_tokens() -> None:
    chat = b'{"prompt_tokens":5,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}'
    profile = b'{"input_tokens":5,"output_tokens":4,"input_tokens_details":{"cached_tokens":3}}'
    assert read_usage(chat) == read_usage(profile) == Usage(5, 4, 3)
    assert read_usage(b'{"prompt_tokens":1,"prompt_tokens_details":null}') == Usage(1, 0)


@pytest.mark.parametrize("usage", [b"", b"null", b"[]", b"7", b"{", b'{"prompt_tokens":"5"}'])
def test_what_is_no_usage(usage: bytes) -> None:
    assert read_usage(usage) is None
    assert chat_usage(usage) is None


def test_chat_naming_is_kept_byte_for_byte() -> None:
    odd = b'{"completion_tokens": 4, "prompt_tokens": 5, "x_engine": [1]}'
    assert chat_usage(odd) == odd


def test_profile_naming_becomes_chat_naming() -> None:
    assert json.loads(chat_usage(PROFILE) or b"") == json.loads(CHAT)


def test_a_missing_total_is_the_sum() -> None:
    usage = json.loads(chat_usage(b'{"input_tokens":5,"output_tokens":4}') or b"")
    assert usage == {"prompt_tokens": 5, "total_tokens": 9, "completion_tokens": 4}


def test_details_are_renamed_too_and_never_null() -> None:
    profile = b'{"input_tokens":5,"output_tokens":4,"input_tokens_details":{"cached_tokens":3}}'
    assert json.loads(chat_usage(profile) or b"")["prompt_tokens_details"] == {"cached_tokens": 3}
    assert b"null" not in (chat_usage(PROFILE) or b"")

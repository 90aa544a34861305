import json

import pytest

from gateway.protocols.errors import InvalidRequest
from gateway.protocols.json import is_deeper_than, parse_object


def refused(raw: bytes, **limits: int) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(raw, **limits)
    return caught.value


def nested(depth: int) -> bytes:
    """An object whose nesting is `depth`, itself included."""
    inner = depth - 1
    return b'{"a":' + b"[" * inner + b"]" * inner + b"}" if inner else b"{}"


def test_an_object_is_parsed() -> None:
    raw = b' {"model": "m", "n": 1, "x": [1.5, null, true, "\xc3\xa9\\u00e9"]}\r\n'
    assert parse_object(raw) == {"model": "m", "n": 1, "x": [1.5, None, True, "éé"]}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a":1',
        b'{"a":1}}',
        b'{"a":1} trailing',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"{\x00}",
    ],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    error = refused(raw)
    assert error.code == "json_invalid"
    assert error.param is None


@pytest.mark.parametrize("raw", [b"[]", b'"text"', b"1", b"null", b"true"])
def test_only_an_object_is_a_request(raw: bytes) -> None:
    assert refused(raw).code == "invalid_type"


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"m":[{"role":"user","content":"hi","role":"system"}]}', "role"),
        (b'{"m":[{"tool_calls":[{"id":"a","id":"b"}]}]}', "id"),
        (b'{"a":{"":1,"":2}}', ""),
    ],
)
def test_duplicate_keys_are_refused_at_every_level(raw: bytes, key: str) -> None:
    error = refused(raw)
    assert error.code == "duplicate_field"
    assert error.message == f"duplicate field `{key}`"


def test_the_same_key_in_two_objects_is_no_duplicate() -> None:
    assert parse_object(b'{"a":{"b":1},"c":{"b":2}}') == {"a": {"b": 1}, "c": {"b": 2}}


@pytest.mark.parametrize("depth", [1, 2, 64])
def test_nesting_up_to_the_limit_passes(depth: int) -> None:
    assert parse_object(nested(depth)) == json.loads(nested(depth))


@pytest.mark.parametrize("depth", [65, 66, 150, 250, 100_000])
def test_deeper_nesting_is_refused(depth: int) -> None:
    # Past 200 levels the parser gives up by itself; the user cannot tell the two apart.
    error = refused(nested(depth))
    assert error.code == "json_too_deep"
    assert "64" in error.message


def test_the_limit_is_an_argument() -> None:
    assert refused(nested(4), max_depth=3).code == "json_too_deep"
    assert parse_object(nested(3), max_depth=3)


def test_many_containers_beside_each_other_are_not_deep() -> None:
    flat = json.dumps({"messages": [{"content": []} for _ in range(500)]}).encode()
    assert len(parse_object(flat)["messages"]) == 500


def test_brackets_inside_strings_do_not_count() -> None:
    assert parse_object(json.dumps({"a": "[{" * 500}).encode()) == {"a": "[{" * 500}


def test_brackets_inside_strings_do_not_hide_depth() -> None:
    # Counting brackets naively, "]" in a string would seem to close a level.
    raw = b'{"a":' + b'["]",' * 80 + b"1" + b"]" * 80 + b"}"
    assert refused(raw).code == "json_too_deep"


def test_depth_of_a_mixed_tree() -> None:
    tree = {"a": [1, {"b": [{"c": 1}]}], "d": "x" * 10}
    raw = json.dumps({**tree, "e": [[]] * 10}).encode()
    assert is_deeper_than(4, tree, raw)
    assert not is_deeper_than(5, tree, raw)

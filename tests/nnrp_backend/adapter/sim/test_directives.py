import pytest

from nnrp_backend.adapter.sim.directives import (
    DEFAULT_TOKENS,
    MAX_DELAY_MS,
    MAX_PIECES,
    Script,
    parse_script,
)
from nnrp_backend.profile.errors import ErrorCode, ProfileError

EVERYTHING = (
    '/sim tokens=200 delay_ms=20 first_ms=500 reasoning=10 tool=lookup args={"q":"x y"} '
    'text="two \\"words\\"" error=backend_overload error_after=5 die_after=3 hang=1'
)


def test_every_key() -> None:
    assert parse_script(EVERYTHING) == Script(
        tokens=200,
        delay_ms=20,
        first_ms=500,
        reasoning=10,
        tool="lookup",
        args='{"q":"x y"}',
        text='two "words"',
        error=ErrorCode.BACKEND_OVERLOAD,
        error_after=5,
        die_after=3,
        hang=True,
    )


def test_keys_come_in_any_order_and_on_several_lines() -> None:
    assert parse_script("/sim\n  delay_ms=5\n  tokens=2\n") == parse_script(
        "/sim tokens=2 delay_ms=5"
    )


@pytest.mark.parametrize("message", ["", "hello", "/simulate tokens=1", " /sim", "say /sim"])
def test_what_is_no_script(message: str) -> None:
    assert parse_script(message) is None


def test_a_script_without_content_gets_some_tokens() -> None:
    assert parse_script("/sim") == Script(tokens=DEFAULT_TOKENS)
    assert parse_script("/sim delay_ms=1").tokens == DEFAULT_TOKENS
    assert parse_script("/sim reasoning=2").tokens == DEFAULT_TOKENS


@pytest.mark.parametrize("script", ["tokens=0", "text=hi", "tool=lookup"])
def test_a_script_with_content_gets_nothing_else(script: str) -> None:
    assert parse_script(f"/sim {script}").tokens == 0


@pytest.mark.parametrize("key", ["error_after", "die_after"])
def test_there_are_enough_tokens_for_the_fault_to_happen(key: str) -> None:
    assert parse_script(f"/sim {key}=100").tokens == 100


@pytest.mark.parametrize("script", ["error", "error=1", "error_after=0", "error=backend_error"])
def test_an_error_alone_is_a_backend_error(script: str) -> None:
    parsed = parse_script(f"/sim {script}")
    assert (parsed.error, parsed.error_after) == (ErrorCode.BACKEND_ERROR, 0)


@pytest.mark.parametrize(("script", "hangs"), [("hang", True), ("hang=1", True), ("hang=0", False)])
def test_a_flag_needs_no_value(script: str, hangs: bool) -> None:
    assert parse_script(f"/sim {script}").hang is hangs


def test_numbers_at_their_limits() -> None:
    parsed = parse_script(f"/sim tokens={MAX_PIECES} delay_ms={MAX_DELAY_MS}")
    assert (parsed.tokens, parsed.delay_ms) == (MAX_PIECES, MAX_DELAY_MS)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("speed=9", "unknown key 'speed'; the keys are tokens, "),
        ("tokens=1 tokens=2", "tokens is given twice"),
        ("tokens=-1", "tokens=-1: a whole number from 0 to 1000000"),
        ("tokens=many", "a whole number"),
        ("tokens=1_0", "a whole number"),
        ("tokens=٣", "a whole number"),
        (f"tokens={MAX_PIECES + 1}", "a whole number"),
        (f"delay_ms={MAX_DELAY_MS + 1}", "a whole number"),
        ("tokens=", "tokens has no value"),
        ("tokens", "a whole number"),
        ("text=", "text has no value"),
        ('text=""', "a text is expected"),
        ('text="open', "text is not valid JSON"),
        ('text="a"b', "no space after text"),
        ("tool=x args={", "args is not valid JSON"),
        ("tool=x args=" + '{"a":' * 100_000, "args is nested too deeply"),
        (r'text="\ud800"', "half a surrogate pair"),
        (r'tool="\udfff"', "half a surrogate pair"),
        ("tool=x args=[1]", "a JSON object is expected"),
        ("tool=x args=q", "a JSON object is expected"),
        ('args={"q":1}', "args needs tool"),
        ("error=sunshine", "not an error code of the profile"),
        ("hang=maybe", "0 or 1 is expected"),
        ("=5", "no key at '=5'"),
        ("TOKENS=5", "no key at 'TOKENS=5'"),
    ],
)
def test_a_wrong_script_is_refused_with_the_reason(script: str, reason: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_script(f"/sim {script}")
    assert caught.value.code == ErrorCode.INVALID_BACKEND_REQUEST
    assert caught.value.param == "messages"
    assert reason in caught.value.message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.adapter.sim.answers import Answer, Kind
from nnrp_backend.adapter.sim.generation import Generation, Piece, StopFilter
from nnrp_backend.adapter.sim.tools import ToolCall

FIVE = Answer(text="a b c d e")


def generate(answer: Answer, limit: int | None = None, stop: str = "") -> Generation:
    return Generation(answer, limit=limit, stops=[stop] if stop else [])


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_without_limits_everything_comes() -> None:
    generation = generate(FIVE)
    assert text_of(list(generation)) == "a b c d e"
    assert (generation.finish_reason, generation.tokens) == ("stop", 5)
    assert repr(generation) == "<Generation [5 tokens, stop]>"


def test_a_tool_call_finishes_as_one() -> None:
    generation = generate(Answer(call=ToolCall("f", "{}")))
    assert [piece.kind for piece in generation] == [Kind.CALL, Kind.ARGUMENTS]
    assert generation.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("limit", "text", "reason"),
    [
        (1, "a", "length"),
        (4, "a b c d", "length"),
        (5, "a b c d e", "stop"),
        (6, "a b c d e", "stop"),
    ],
)
def test_the_limit_cuts(limit: int, text: str, reason: str) -> None:
    generation = generate(FIVE, limit)
    assert text_of(list(generation)) == text
    assert generation.finish_reason == reason
    assert generation.tokens == min(limit, 5)


def test_reasoning_counts_towards_the_limit() -> None:
    generation = generate(Answer(reasoning="x y", text="a b"), 3)
    assert text_of(list(generation)) == "x ya"
    assert (generation.tokens, generation.reasoning_tokens) == (3, 2)


def test_a_call_that_is_cut_is_not_a_finished_call() -> None:
    generation = generate(Answer(call=ToolCall("f", '{"long":"argument"}')), 2)
    list(generation)
    assert generation.finish_reason == "length"


@pytest.mark.parametrize(
    ("stop", "text"),
    [("c", "a b "), (" c d", "a b"), ("a", ""), ("b c d e", "a "), ("zzz", "a b c d e")],
)
def test_a_stop_string_cuts_wherever_tokens_end(stop: str, text: str) -> None:
    generation = generate(FIVE, None, stop)
    assert text_of(list(generation)) == text
    assert generation.finish_reason == "stop"


def test_tokens_after_the_stop_string_are_not_made() -> None:
    generation = generate(FIVE, None, "b")
    list(generation)
    assert generation.tokens == 2


def test_a_limit_before_the_stop_string_wins() -> None:
    generation = generate(FIVE, 2, "c")
    assert text_of(list(generation)) == "a b"
    assert generation.finish_reason == "length"


def test_what_could_begin_a_stop_string_is_held_back_with_its_tokens() -> None:
    assert list(generate(FIVE, None, " b d")) == [
        Piece(Kind.TEXT, "a", ("a",)),
        Piece(Kind.TEXT, "", ()),
        Piece(Kind.TEXT, " b c", (" b", " c")),
        Piece(Kind.TEXT, " d", (" d",)),
        Piece(Kind.TEXT, " e", (" e",)),
    ]


def test_held_text_comes_at_the_end() -> None:
    assert list(generate(Answer(text="a b"), None, " b c"))[-1] == Piece(Kind.TEXT, " b", (" b",))


def test_held_text_comes_before_a_call() -> None:
    pieces = list(generate(Answer(text="a b", call=ToolCall("f", "{}")), None, " b c"))
    assert [(piece.kind, piece.text) for piece in pieces] == [
        (Kind.TEXT, "a"),
        (Kind.TEXT, ""),
        (Kind.TEXT, " b"),
        (Kind.CALL, "f"),
        (Kind.ARGUMENTS, "{}"),
    ]


def test_stop_strings_do_not_look_into_reasoning_or_arguments() -> None:
    answer = Answer(reasoning="stop", text="a", call=ToolCall("stop", '"stop"'))
    assert "stop" in text_of(list(generate(answer, None, "stop")))


@given(
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_filter_agrees_with_a_search_in_the_whole_text(
    tokens: list[str], stops: list[str]
) -> None:
    stop_filter = StopFilter(stops)
    shown, seen = "", []
    for token in tokens:
        text, behind = stop_filter.feed(token)
        shown += text
        seen += behind
        if stop_filter.found:
            break
    else:
        text, behind = stop_filter.flush()
        shown += text
        seen += behind
    # A stop string that ends in an earlier token is found before a longer one that began earlier.
    whole = ""
    for token in tokens:
        whole += token
        places = [whole.find(stop) for stop in stops if stop in whole]
        if places:
            whole = whole[: min(places)]
            break
    assert shown == whole
    assert seen == tokens[: len(seen)]
    assert stop_filter.found or seen == tokens

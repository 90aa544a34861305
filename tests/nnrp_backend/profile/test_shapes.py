"""The fast path must do nothing but be fast."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.profile.chunks import ChatChunkMapper
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.shapes import MAX_SHAPES
from tests.support import engine_chunks as chat
from tests.support.engine_chunks import chunk, chunk_of, finish, role, text


def fed(*chunks: bytes, **options: Any) -> ChatChunkMapper:
    mapper = ChatChunkMapper(ChunkOptions(**options), include_usage=True)
    for data in chunks:
        mapper.feed(data)
    return mapper


def known(mapper: ChatChunkMapper) -> int:
    return len(mapper._shapes)


class TestLearning:
    @pytest.mark.parametrize(
        "delta",
        [
            {"content": "x"},
            {"content": ""},
            {"content": 'q"\\ \u2028 \u00e9'},
            {"reasoning": "x"},
            {"reasoning_content": "x"},
        ],
    )
    @pytest.mark.parametrize("reasoning", ["reasoning", "reasoning_content", "both"])
    @pytest.mark.parametrize("usage", ["null", "absent"])
    def test_text_chunks_are_known_after_the_first(
        self, delta: dict[str, str], reasoning: str, usage: str
    ) -> None:
        data = chunk_of(chat.choice(delta, token_ids=None))
        mapper = fed(role(), data, reasoning=reasoning, usage=usage, model="alias")
        assert known(mapper) == 1
        assert (
            mapper._shapes.event(data)
            == fed(role(), reasoning=reasoning, usage=usage, model="alias").feed(data)[0]
        )

    def test_arguments_of_a_started_call_are_known(self) -> None:
        opening = chunk({"tool_calls": [chat.first_call()]})
        piece = chunk({"tool_calls": [chat.call(arguments='{"a')]})
        mapper = fed(role(), opening, piece)
        assert known(mapper) == 1
        assert mapper._shapes.event(piece) == fed(role(), opening).feed(piece)[0]

    @pytest.mark.parametrize(
        "data",
        [
            chunk({}),
            chunk({"content": None}),
            chunk({"refusal": "x"}),
            chunk({"content": ["x"]}),
            chunk({"content": "x", "reasoning": "y"}),
            chunk({"content": "x", "citations": []}),
            chunk({"content": "x"}, finish="stop"),
            chunk({"content": "x"}, finish="abort")[:-1] + b',"n":1}',
            chunk({"content": "\0text\0"}),
            chunk_of(chat.choice({"content": "x"}, token_ids=[1])),
            chunk_of(chat.choice({"content": "x"}, logprobs={"content": []})),
            chunk_of(chat.choice({"content": "x"}), usage=chat.counts()),
            chunk_of(chat.choice({"content": "x"}), obfuscation="a"),
            chunk_of(chat.choice({"content": "x"}), content="a"),
            chunk_of(chat.choice({"content": "x"}), chat.choice({"content": "x"}, 1)),
            chunk({"tool_calls": [chat.first_call(), chat.first_call(1, "b")]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}),
            text("x").replace(b":", b": "),
            text("x").replace(b'"content":', b'"content" :'),
            text("x") + b"\n",
        ],
    )
    def test_others_are_not(self, data: bytes) -> None:
        assert known(fed(role(), data, data)) == 0

    def test_null_members_beside_the_text_are_no_obstacle(self) -> None:
        # SGLang writes every member of a delta, always.
        data = chunk({"role": None, "content": "x", "reasoning_content": None, "tool_calls": None})
        mapper = fed(role(), data)
        assert known(mapper) == 1
        assert mapper._shapes.event(data) == fed(role()).feed(text("x"))[0]

    def test_what_is_taken_out_of_each_chunk_is_no_obstacle(self) -> None:
        again = chunk({"role": "assistant", "content": "x"})
        mapper = fed(again, again, again)
        assert known(mapper) == 1
        assert mapper.feed(again) == fed(role()).feed(again)

    def test_a_finish_forgets_all(self) -> None:
        assert known(fed(role(), text("x"))) == 1
        assert known(fed(role(), text("x"), finish())) == 0
        assert known(fed(role(), text("x"), chunk({"content": "y"}, finish="stop"))) == 0

    def test_there_is_a_bound(self) -> None:
        many = [
            text("x").replace(b'"choices"', b'"service_tier":"%d","choices"' % n) for n in range(99)
        ]
        assert known(fed(role(), *many)) == MAX_SHAPES


class TestMatching:
    @pytest.mark.parametrize(
        "inside",
        [
            b"",
            b"null",
            b"5",
            b'"',
            b'"a',
            b'a"',
            b'"a" ',
            b' "a"',
            b'"a"\n',
            b'"a","role":"user"',
            b'"a","content":"b"',
            b'"a\n"',
            b'"\xff"',
            b'"\\ud800"',
            b'["a"]',
        ],
    )
    def test_only_one_string_fits_between_the_ends(self, inside: bytes) -> None:
        before, after = text("?").split(b'"?"')
        mapper = fed(role(), text("x"))
        assert mapper._shapes.event(before + inside + after) is None

    def test_the_end_must_be_the_same(self) -> None:
        mapper = fed(role(), text("x"))
        other = text("x").replace(b'"finish_reason":null', b'"finish_reason":"ab"')
        assert len(other) == len(text("x"))
        assert mapper._shapes.event(other) is None

    def test_ends_must_not_overlap(self) -> None:
        before, after = text("?").split(b'"?"')
        mapper = fed(role(), text("x"))
        assert mapper._shapes.event(before + after[1:]) is None
        assert mapper._shapes.event(before) is None
        assert mapper._shapes.event(b"") is None

    def test_the_text_is_gathered(self) -> None:
        mapper = fed(role(), *(text(piece) for piece in ("a", "b", "", "c")), finish())
        body = json.loads(mapper.completed())["body"]
        assert body["choices"][0]["message"]["content"] == "abc"

    def test_the_strings_own_bytes_are_used(self) -> None:
        escaped = text("x").replace(b'"x"', b'"\\u0041\\/"')
        (event,) = fed(role(), text("x")).feed(escaped)
        assert event.count(b'"\\u0041\\/"') == 2
        assert json.loads(event)["delta"] == "A/"


@given(
    st.lists(
        st.binary(max_size=8) | st.sampled_from([b'"', b'\\"', b'"a"', b",", b"\n"]), max_size=6
    )
)
def test_whatever_is_between_the_ends_is_told_as_the_long_way_tells_it(parts: list[bytes]) -> None:
    before, after = text("?").split(b'"?"')
    data = before + b'"' + b"".join(parts) + b'"' + after
    quick, slow = fed(role(), text("x")), fed(role(), text("x"))
    slow._shapes.forget()
    assert outcome(quick, data) == outcome(slow, data)
    assert quick.completed() == slow.completed()


def outcome(mapper: ChatChunkMapper, data: bytes) -> Any:
    try:
        return mapper.feed(data)
    except Exception as exc:
        return type(exc), str(exc)

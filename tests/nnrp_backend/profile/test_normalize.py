import copy
from typing import Any

import pytest

from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.normalize import normalize_chat

USER = {"role": "user", "content": "ping"}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {}}}


def body(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages) or [USER], **members}


def normal(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    given = body(*messages, **members)
    before = copy.deepcopy(given)
    result = normalize_chat(given)
    assert given == before, "the argument was changed"
    return result


def refused(*messages: dict[str, Any], **members: Any) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        normal(*messages, **members)
    assert caught.value.code == ErrorCode.INVALID_BODY
    return caught.value


def test_an_ordinary_body_stays_as_it_is() -> None:
    given = body(
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t", "x": 1}], "name": "n"},
        temperature=0.5,
        stop=["a"],
        stream=True,
        stream_options={"include_usage": True},
        tools=[TOOL],
        tool_choice="auto",
        vllm_xargs={"y": [1]},
    )
    assert normalize_chat(given) == given


def test_null_means_absent() -> None:
    assert normal(temperature=None, stop=None, tools=None, tool_choice=None) == body()


class TestStreamOptions:
    @pytest.mark.parametrize("stream", [{}, {"stream": None}, {"stream": False}])
    def test_they_go_without_a_stream(self, stream: dict[str, Any]) -> None:
        assert "stream_options" not in normal(**stream, stream_options={"include_usage": True})

    def test_they_stay_with_one(self) -> None:
        options = {"include_usage": True, "continuous_usage_stats": None}
        assert normal(stream=True, stream_options=options)["stream_options"] == {
            "include_usage": True
        }

    def test_wrong_types_are_the_engines_to_refuse(self) -> None:
        assert normal(stream=True, stream_options=[1])["stream_options"] == [1]


class TestTextFormat:
    def test_a_schema_becomes_the_response_format(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
        format_ = {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}
        result = normal(text={"verbosity": "high", "format": format_})
        assert "text" not in result
        assert result["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }

    def test_plain_formats_pass(self) -> None:
        result = normal(text={"format": {"type": "json_object"}})
        assert result["response_format"] == {"type": "json_object"}

    def test_verbosity_alone_is_dropped(self) -> None:
        assert normal(text={"verbosity": "low"}) == body()

    def test_a_response_format_of_the_client_wins(self) -> None:
        result = normal(text={"format": {"type": "text"}}, response_format={"type": "json_object"})
        assert result["response_format"] == {"type": "json_object"}

    def test_wrong_types_are_the_engines_to_refuse(self) -> None:
        assert normal(text="x")["text"] == "x"


class TestStop:
    def test_token_ids_get_their_own_member(self) -> None:
        result = normal(stop=[576, 32])
        assert "stop" not in result
        assert result["stop_token_ids"] == [576, 32]

    def test_they_join_those_given_already(self) -> None:
        assert normal(stop=[2], stop_token_ids=[1])["stop_token_ids"] == [1, 2]

    @pytest.mark.parametrize("stop", ["x", ["x"], [], ["token_id:576"], [1, "x"], [True]])
    def test_other_stops_pass(self, stop: Any) -> None:
        result = normal(stop=stop)
        assert result["stop"] == stop
        assert "stop_token_ids" not in result


class TestTools:
    def test_an_empty_list_goes_with_its_choice(self) -> None:
        assert normal(tools=[], tool_choice="auto") == body()
        assert normal(tools=[]) == body()

    @pytest.mark.parametrize("choice", ["auto", "required", {"type": "function"}])
    def test_a_choice_without_tools_is_refused(self, choice: Any) -> None:
        assert refused(tool_choice=choice).param == "tool_choice"

    def test_a_choice_of_none_needs_no_tools(self) -> None:
        assert normal(tool_choice="none") == body()
        assert normal(tools=[TOOL], tool_choice="none")["tool_choice"] == "none"

    def test_a_named_choice_must_exist(self) -> None:
        named = {"type": "function", "function": {"name": "lookup"}}
        assert normal(tools=[TOOL], tool_choice=named)["tool_choice"] == named
        other = {"type": "function", "function": {"name": "other"}}
        error = refused(tools=[TOOL], tool_choice=other)
        assert error.param == "tool_choice"
        assert "'other'" in error.message

    def test_tools_of_system_messages_count(self) -> None:
        system = {"role": "system", "content": "s", "tools": [{"name": "lookup"}, {}, 3]}
        named = {"type": "function", "function": {"name": "lookup"}}
        result = normal(system, USER, tool_choice=named)
        assert result["tool_choice"] == named
        assert "tools" not in result

    def test_tools_of_other_messages_do_not(self) -> None:
        assert refused({**USER, "tools": [TOOL]}, tool_choice="auto").param == "tool_choice"


class TestMessages:
    def test_a_partial_answer_is_continued(self) -> None:
        result = normal(USER, {"role": "assistant", "content": "The", "partial": True})
        assert result["continue_final_message"] is True
        assert result["add_generation_prompt"] is False
        assert result["messages"][-1] == {"role": "assistant", "content": "The"}

    @pytest.mark.parametrize("partial", [False, None])
    def test_others_are_not(self, partial: Any) -> None:
        result = normal(USER, {"role": "assistant", "content": "The", "partial": partial})
        assert "continue_final_message" not in result
        assert "partial" not in result["messages"][-1]

    def test_only_the_last_message_can_be_continued(self) -> None:
        result = normal({"role": "assistant", "content": "The", "partial": True}, USER)
        assert "continue_final_message" not in result
        assert "partial" not in result["messages"][0]

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"reasoning_content": "r"}, {"reasoning": "r"}),
            ({"reasoning": "r"}, {"reasoning": "r"}),
            ({"reasoning": "r", "reasoning_content": "r"}, {"reasoning": "r"}),
            ({"reasoning": None, "reasoning_content": "r"}, {"reasoning": "r"}),
            ({"reasoning_content": ["a", "", "b"]}, {"reasoning": "a\nb"}),
            ({"reasoning_content": None}, {}),
            ({}, {}),
        ],
    )
    def test_reasoning_has_one_key(self, given: dict[str, Any], expected: dict[str, Any]) -> None:
        message = {"role": "assistant", "content": "x"}
        assert normal(USER, {**message, **given})["messages"][1] == {**message, **expected}

    def test_two_reasonings_that_differ_are_refused(self) -> None:
        error = refused({"role": "assistant", "reasoning": "a", "reasoning_content": "b"})
        assert error.param == "messages"
        assert "duplicate field" in error.message

    def test_tool_calls_get_their_type_and_text_arguments(self) -> None:
        calls = [
            {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}},
            {"id": "b", "type": None, "function": {"name": "f", "arguments": "{}"}},
            "odd",
        ]
        result = normal({"role": "assistant", "content": None, "tool_calls": calls})
        assert result["messages"][0] == {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                "odd",
            ],
        }

    def test_a_system_message_that_only_has_tools_gets_a_text(self) -> None:
        result = normal({"role": "system", "tools": [TOOL]}, USER)
        assert result["messages"][0] == {"role": "system", "content": "", "tools": [TOOL]}
        assert "content" not in normal({"role": "system"}, USER)["messages"][0]

    def test_what_is_no_message_is_the_engines_to_refuse(self) -> None:
        given = {"model": "m", "messages": ["x", 1], "tool_choice": "none"}
        assert normalize_chat(given)["messages"] == ["x", 1]
        assert normalize_chat({"model": "m", "messages": "x"})["messages"] == "x"


class TestMedia:
    @pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
    @pytest.mark.parametrize("empty", [{kind: None} for kind in ("url",)] + [{"url": ""}, None, {}])
    def test_a_part_without_url_needs_a_uuid(self, kind: str, empty: Any) -> None:
        part = {"type": kind, kind: empty}
        assert refused({"role": "user", "content": [part]}).param == "messages"
        result = normal({"role": "user", "content": [{**part, "uuid": "u1"}]})
        assert result["messages"][0]["content"] == [{"type": kind, kind: None, "uuid": "u1"}]

    def test_an_older_place_of_the_uuid(self) -> None:
        part = {"type": "image_url", "image_url": {"url": "", "uuid": "u1"}}
        result = normal({"role": "user", "content": [part]})
        assert result["messages"][0]["content"] == [
            {"type": "image_url", "image_url": None, "uuid": "u1"}
        ]

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}},
            {"type": "image_url", "image_url": "http://x"},
            {"type": "input_audio", "input_audio": {"data": "x"}},
            {"type": "text", "text": "x"},
            "odd",
        ],
    )
    def test_other_parts_pass(self, part: Any) -> None:
        assert normal({"role": "user", "content": [part]})["messages"][0]["content"] == [part]

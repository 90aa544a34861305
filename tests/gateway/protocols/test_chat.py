"""Each accept has a reject beside it. Shapes: OpenAI's API, and the published Rust types."""

from typing import Any

import pytest

from gateway.protocols.chat import ChatRequest
from gateway.protocols.errors import InvalidRequest
from gateway.protocols.validation import checked

USER = {"role": "user", "content": "ping"}
TOOL = {"type": "function", "function": {"name": "lookup"}}


def with_field(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], **members}


def with_messages(*messages: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


def canonical(body: dict[str, Any]) -> dict[str, Any]:
    return checked(ChatRequest, body).canonical()


def canonical_message(message: dict[str, Any]) -> dict[str, Any]:
    return canonical(with_messages(message))["messages"][0]


def refused(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        checked(ChatRequest, body)
    return caught.value


class TestRequest:
    def test_the_smallest_request(self) -> None:
        assert canonical(with_field()) == with_field()

    @pytest.mark.parametrize("missing", ["model", "messages"])
    def test_required_members(self, missing: str) -> None:
        body = with_field()
        del body[missing]
        error = refused(body)
        assert (error.code, error.param) == ("missing_required_parameter", missing)

    @pytest.mark.parametrize(
        ("name", "good", "bad"),
        [
            ("audio", {"voice": "alloy", "format": "wav"}, "alloy"),
            ("frequency_penalty", -0.5, "-0.5"),
            ("function_call", {"name": "f"}, 3),
            ("functions", [{"name": "f"}], [{"description": "nameless"}]),
            ("logit_bias", {"50256": -100}, [50256]),
            ("logprobs", True, "true"),
            ("max_completion_tokens", 10, -1),
            ("max_tokens", 0, 2**32),
            ("modalities", ["text", "audio"], "text"),
            ("n", 255, 256),
            ("parallel_tool_calls", False, 0),
            ("presence_penalty", 1, True),
            ("prompt_cache_key", "k", 1),
            ("reasoning_effort", "max", "ultra"),
            ("response_format", {"type": "structural_tag"}, "json_object"),
            ("safety_identifier", "s", 1),
            ("seed", -(2**63), 2**63),
            ("service_tier", "flex", 1),
            ("store", True, 1),
            ("stream", False, "true"),
            ("stream_options", {"include_usage": True}, {"include_usage": "yes"}),
            ("temperature", 3, "hot"),
            ("tools", [TOOL], [{"type": "function"}]),
            ("tools", [{**TOOL, "type": "builtin_function"}], [{**TOOL, "type": "custom"}]),
            ("top_logprobs", -1, 1.5),
            ("top_p", 0.9, [0.9]),
            ("user", "u", 7),
        ],
    )
    def test_types_of_members(self, name: str, good: Any, bad: Any) -> None:
        assert name in canonical(with_field(**{name: good}))
        error = refused(with_field(**{name: bad}))
        assert error.param
        assert error.param.startswith(name)
        assert error.code.startswith("invalid_") or error.code == "missing_required_parameter"

    @pytest.mark.parametrize("name", ["metadata", "mm_processor_kwargs", "prediction"])
    @pytest.mark.parametrize("value", [1, "x", [1], {"size": 256}])
    def test_members_of_any_json_type(self, name: str, value: Any) -> None:
        assert canonical(with_field(**{name: value}))[name] == value

    def test_null_is_absent(self) -> None:
        names = set(ChatRequest.model_fields) - {"model", "messages"}
        assert canonical(with_field(**dict.fromkeys(names))) == with_field()

    def test_numbers_are_not_made_of_text_nor_booleans_of_numbers(self) -> None:
        assert refused(with_field(n="1")).param == "n"
        assert refused(with_field(n=True)).param == "n"
        assert refused(with_field(n=1.0)).param == "n"
        assert refused(with_field(stream=1)).param == "stream"

    def test_unknown_members_are_nobodys_business_here(self) -> None:
        assert canonical(with_field(min_p=0.1, x_vendor={"deep": [1]})) == with_field()


class TestStreamOptions:
    @pytest.mark.parametrize("stream", [{}, {"stream": None}, {"stream": False}, {"stream": True}])
    @pytest.mark.parametrize("usage", [True, False])
    def test_kept_for_every_value_of_stream(self, stream: dict[str, Any], usage: bool) -> None:
        options = {"include_usage": usage, "continuous_usage_stats": not usage}
        assert canonical(with_field(**stream, stream_options=options))["stream_options"] == options

    @pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats"])
    def test_a_null_flag_is_false(self, name: str) -> None:
        request = checked(ChatRequest, with_field(stream_options={name: None}))
        assert request.stream_options is not None
        assert getattr(request.stream_options, name) is False

    def test_flags_are_booleans(self) -> None:
        error = refused(with_field(stream_options={"include_usage": 1}))
        assert error.param == "stream_options.include_usage"
        assert refused(with_field(stream_options=True)).param == "stream_options"


class TestStop:
    @pytest.mark.parametrize("stop", ["end", "token_id:576", ["a", "b"], [576, 32], [0], []])
    def test_text_or_token_ids(self, stop: Any) -> None:
        assert canonical(with_field(stop=stop))["stop"] == stop

    @pytest.mark.parametrize(
        "stop", [576, ["end", 576], [-1], [2**32], True, [True], [1.5], [None], {"a": 1}]
    )
    def test_nothing_else(self, stop: Any) -> None:
        error = refused(with_field(stop=stop))
        assert (error.param, error.code) == ("stop", "invalid_value")


class TestToolChoice:
    @pytest.mark.parametrize(
        "choice",
        ["none", "auto", "required", {"type": "function", "function": {"name": "lookup"}}],
    )
    def test_a_mode_or_a_function(self, choice: Any) -> None:
        assert canonical(with_field(tools=[TOOL], tool_choice=choice))["tool_choice"] == choice

    @pytest.mark.parametrize(
        "choice",
        [
            "invalid",
            3,
            ["auto"],
            {"Named": {"type": "function", "function": {"name": "lookup"}}},
            {"type": "function"},
            {"type": "function", "function": {"name": 3}},
            {"type": "auto", "function": {"name": "lookup"}},
        ],
    )
    def test_nothing_else(self, choice: Any) -> None:
        error = refused(with_field(tools=[TOOL], tool_choice=choice))
        assert (error.param, error.code) == ("tool_choice", "invalid_value")

    def test_the_types_do_not_ask_for_tools(self) -> None:
        assert canonical(with_field(tool_choice="auto"))["tool_choice"] == "auto"


class TestRoles:
    @pytest.mark.parametrize(
        "message",
        [
            {"role": "developer", "content": "be brief"},
            {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
            {"role": "user", "content": "hi", "name": "ann"},
            {"role": "assistant", "content": "hello", "refusal": "no"},
            {"role": "assistant"},
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
            {"role": "function", "name": "f", "content": "x"},
        ],
    )
    def test_each_role(self, message: dict[str, Any]) -> None:
        assert canonical_message(message) == message

    @pytest.mark.parametrize(
        ("message", "param", "code"),
        [
            ({"role": "king", "content": "x"}, "messages[0].role", "invalid_value"),
            ({"content": "x"}, "messages[0].role", "missing_required_parameter"),
            ({"role": "user"}, "messages[0].content", "missing_required_parameter"),
            ({"role": "user", "content": None}, "messages[0].content", "invalid_type"),
            ({"role": "user", "content": 3}, "messages[0].content", "invalid_type"),
            (
                {"role": "tool", "content": "x"},
                "messages[0].tool_call_id",
                "missing_required_parameter",
            ),
            ("hi", "messages[0]", "invalid_type"),
        ],
    )
    def test_malformed_messages(self, message: Any, param: str, code: str) -> None:
        error = refused(with_messages(message))
        assert (error.param, error.code) == (param, code)

    def test_unknown_message_keys_are_ignored(self) -> None:
        assert canonical_message({**USER, "x_vendor": 1}) == USER

    @pytest.mark.parametrize("role", ["user", "assistant", "developer", "tool", "function"])
    def test_tools_belong_to_system(self, role: str) -> None:
        message = {"role": role, "content": "hi", "tool_call_id": "c", "name": "n"}
        error = refused(with_messages({**message, "tools": [{"name": "l"}]}))
        assert error.message == f"`tools` is only accepted on system messages, not on role {role}"
        assert error.param == "messages[0].tools"
        assert canonical(with_messages({**message, "tools": None}))

    @pytest.mark.parametrize("role", ["user", "system", "developer", "tool", "function"])
    @pytest.mark.parametrize("partial", [True, False])
    def test_partial_belongs_to_assistant(self, role: str, partial: bool) -> None:
        message = {"role": role, "content": "hi", "tool_call_id": "c", "name": "n"}
        error = refused(with_messages({**message, "partial": partial}))
        assert error.message == (
            f"`partial` is only accepted on assistant messages, not on role {role}"
        )
        assert canonical(with_messages({**message, "partial": None}))

    def test_an_assistant_message_may_be_partial(self) -> None:
        message = {"role": "assistant", "content": "The", "partial": True}
        assert canonical_message(message) == message


class TestSystemTools:
    @pytest.mark.parametrize("content", [{}, {"content": None}])
    def test_tools_make_up_for_missing_content(self, content: dict[str, Any]) -> None:
        tools = [{"type": "function", "function": {"name": "lookup", "strict": True}}]
        message = canonical_message({"role": "system", **content, "tools": tools})
        assert message == {"role": "system", "content": "", "tools": tools}

    def test_entries_are_kept_verbatim(self) -> None:
        tools = [{"name": "lookup", "vendor_hint": {"p": 3}}]
        assert canonical_message({"role": "system", "tools": tools})["tools"] == tools

    def test_content_and_tools_together(self) -> None:
        message = {"role": "system", "content": "hi", "tools": [{"name": "l"}]}
        assert canonical_message(message) == message

    @pytest.mark.parametrize("rest", [{}, {"content": None}, {"tools": []}, {"tools": None}])
    def test_without_tools_content_is_required(self, rest: dict[str, Any]) -> None:
        error = refused(with_messages({"role": "system", **rest}))
        assert error.message.startswith("missing field `content`")
        assert error.code == "missing_required_parameter"

    def test_a_wrong_type_of_tools_is_not_called_missing_content(self) -> None:
        error = refused(with_messages({"role": "system", "tools": "lookup"}))
        assert "missing field" not in error.message
        assert error.param == "messages[0].tools"


class TestReasoning:
    @pytest.mark.parametrize("text", ["why", ["first", "then"]])
    @pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
    def test_both_names_are_one(self, key: str, text: Any) -> None:
        message = canonical_message({"role": "assistant", "content": "a", key: text})
        assert message == {"role": "assistant", "content": "a", "reasoning_content": text}

    def test_equal_values_under_both_names_are_one(self) -> None:
        both = {"reasoning": "x", "reasoning_content": "x"}
        assert canonical_message({"role": "assistant", **both}) == {
            "role": "assistant",
            "reasoning_content": "x",
        }

    def test_different_values_are_a_duplicate(self) -> None:
        error = refused(
            with_messages({"role": "assistant", "reasoning": "x", "reasoning_content": "y"})
        )
        assert "duplicate field" in error.message
        assert error.code == "duplicate_field"

    @pytest.mark.parametrize("text", [3, [3], {"a": 1}])
    def test_other_types_are_refused(self, text: Any) -> None:
        error = refused(with_messages({"role": "assistant", "reasoning_content": text}))
        assert error.code == "invalid_type"


class TestToolCalls:
    @staticmethod
    def call(**members: Any) -> dict[str, Any]:
        function = {"name": "f", "arguments": members.pop("arguments", "{}")}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "function": function, **members}],
        }

    def test_a_missing_type_is_function(self) -> None:
        (call,) = canonical_message(self.call())["tool_calls"]
        assert call["type"] == "function"

    @pytest.mark.parametrize(
        ("given", "text"),
        [('{"q": 1}', '{"q": 1}'), ({"q": "hi"}, '{"q":"hi"}'), ({}, "{}"), ({"é": 1}, '{"é":1}')],
    )
    def test_arguments_become_text(self, given: Any, text: str) -> None:
        (call,) = canonical_message(self.call(arguments=given))["tool_calls"]
        assert call["function"]["arguments"] == text

    @pytest.mark.parametrize("arguments", [42, True, None, [1]])
    def test_other_arguments_are_refused(self, arguments: Any) -> None:
        error = refused(with_messages(self.call(arguments=arguments)))
        assert "string or object" in error.message
        assert error.param == "messages[0].tool_calls[0].function.arguments"

    def test_a_call_has_an_id_and_a_name(self) -> None:
        call = {"function": {"arguments": "{}"}}
        error = refused(with_messages({"role": "assistant", "tool_calls": [call]}))
        assert error.code == "missing_required_parameter"


def test_a_tool_may_answer_with_media() -> None:
    content = [
        {"type": "text", "text": "shot"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "audio_url", "audio_url": {"url": "https://x.test/a.wav"}},
    ]
    message = {"role": "tool", "tool_call_id": "c1", "content": content}
    assert canonical_message(message) == message

from typing import Any

import msgspec
import pytest

from nnrp_backend.conformance.errors import ParameterError, RecipeError
from nnrp_backend.conformance.planner import Choice, fill, make_plan, required_tokens
from nnrp_backend.conformance.recipe import Recipe, Status
from nnrp_backend.profile.capabilities import CapabilityRecord, Extension, OperationCapability

CHAT = "chat.completions.create"


def recipe(**changes: Any) -> Recipe:
    document = {
        "id": "case",
        "profile": "openai-compatible",
        "schema_version": "openai-compatible/1",
        "operation": CHAT,
        "request": {"body": {}},
        "expect": {"events": [], "terminal": "success"},
        **changes,
    }
    return msgspec.convert(document, Recipe)


def record(*models: str, levels: tuple[int, ...] = (1,), **flags: bool) -> CapabilityRecord:
    return CapabilityRecord(
        adapter="target",
        levels=levels,
        operations=(OperationCapability(name=CHAT, streaming=True, **flags),),
        models=tuple({"id": model, "owned_by": "tests"} for model in models),
        extensions=(Extension(name="extra.event"),),
    )


@pytest.mark.parametrize(
    ("status", "token", "choice"),
    [
        ("mandatory", "api.level1", Choice.SELECTED),
        ("optional", "api.level1", Choice.SELECTED),
        ("mandatory", "api.level2", Choice.NOT_CLAIMED),
        ("optional", "api.level2", Choice.NOT_CLAIMED),
        ("experimental", "api.level1", Choice.INFORMATIONAL),
        ("deprecated", "api.level1", Choice.INFORMATIONAL),
        ("experimental", "api.level2", Choice.INFORMATIONAL),
    ],
)
def test_a_recipe_is_selected_by_status_and_claimed_tokens(
    status: str, token: str, choice: Choice
) -> None:
    (case,) = make_plan([recipe(status=status, required_capabilities=[token])], record()).cases

    assert case.choice is choice
    assert case.lacking == ((token,) if token == "api.level2" else ())


def test_a_mandatory_case_that_is_not_claimed_is_named() -> None:
    needs = {"required_capabilities": ["api.level9"]}
    plan = make_plan(
        [recipe(id="must", **needs), recipe(id="may", status="optional", **needs)], record()
    )

    assert plan.mandatory_not_claimed == ["must"]
    assert [case.status for case in plan.cases] == [Status.MANDATORY, Status.OPTIONAL]
    assert plan.chosen(Choice.SELECTED) == []
    assert (plan.adapter, plan.extensions) == ("target", {"extra.event"})


@pytest.mark.parametrize(
    ("body", "nnrp", "tokens"),
    [
        ({}, {}, {"api.non_streaming"}),
        ({"stream": False}, {}, {"api.non_streaming"}),
        ({"stream": True}, {}, {"api.streaming"}),
        ({"stream": True, "tools": []}, {}, {"api.streaming"}),
        ({"stream": True, "tools": [{}]}, {}, {"api.streaming", "api.tool_calls"}),
        (
            {"stream": True},
            {"cancel_after_events": 1},
            {"api.streaming", "api.cancellation"},
        ),
    ],
)
def test_tokens_are_derived_from_a_request_that_names_none(
    body: dict[str, Any], nnrp: dict[str, Any], tokens: set[str]
) -> None:
    derived = required_tokens(recipe(request={"body": body, "nnrp": nnrp}))

    assert derived == sorted(tokens | {f"api.{CHAT}"})


def test_named_tokens_are_taken_alone_sorted_and_once() -> None:
    named = recipe(
        required_capabilities=["b", "a", "b"], request={"body": {"stream": True, "tools": [{}]}}
    )

    assert required_tokens(named) == ["a", "b"]


def test_only_a_string_that_is_wholly_a_placeholder_is_filled() -> None:
    tree = {"model": "${M}", "text": "about ${M}", "list": ["${M}", 1, None], "${M}": True}

    assert fill(tree, {"M": "x"}) == {
        "model": "x",
        "text": "about ${M}",
        "list": ["x", 1, None],
        "${M}": True,
    }
    assert tree["model"] == "${M}"


def test_a_placeholder_without_a_value_is_refused() -> None:
    with pytest.raises(ParameterError, match="NOBODY"):
        make_plan([recipe(request={"body": {"model": "${NOBODY}"}})], record())


def test_a_setting_that_no_recipe_has_is_refused() -> None:
    with pytest.raises(ParameterError, match="parameter MODEL: no recipe has it"):
        make_plan([recipe(parameters={"MODEL_ID": "m"})], record(), parameters={"MODEL": "x"})


@pytest.mark.parametrize(
    ("default", "models", "model", "settings", "expected"),
    [
        ("example-model", ("first", "second"), None, {}, "first"),
        ("example-model", ("first",), "asked", {}, "asked"),
        ("example-model", (), None, {}, "example-model"),
        ("example-model", ("first",), "asked", {"MODEL_ID": "set"}, "set"),
        ("backend-error", ("first",), "asked", {}, "backend-error"),
        ("backend-error", ("first",), None, {"MODEL_ID": "set"}, "set"),
    ],
)
def test_the_example_model_stands_for_one_that_the_target_serves(
    default: str,
    models: tuple[str, ...],
    model: str | None,
    settings: dict[str, str],
    expected: str,
) -> None:
    asked = recipe(
        parameters={"MODEL_ID": default},
        request={"body": {"model": "${MODEL_ID}"}, "nnrp": {"hint": "${MODEL_ID}"}},
    )

    (case,) = make_plan([asked], record(*models), model=model, parameters=settings).cases

    assert case.request.body == {"model": expected}
    assert case.request.nnrp == {"hint": expected}


@pytest.mark.parametrize(
    ("models", "choice"),
    [
        (("m", "fails"), Choice.SELECTED),
        (("m",), Choice.NOT_CLAIMED),
        ((), Choice.SELECTED),  # the document lists none, so nothing is known
    ],
)
def test_a_case_about_a_model_needs_a_target_that_lists_it(
    models: tuple[str, ...], choice: Choice
) -> None:
    about = recipe(parameters={"FAILING": "fails"}, requires_models=["${FAILING}"])

    (case,) = make_plan([about], record(*models)).cases

    assert case.choice is choice
    assert case.lacking == (("model fails",) if choice is Choice.NOT_CLAIMED else ())


@pytest.mark.parametrize(
    ("request_", "streamed", "after"),
    [
        ({"body": {"stream": True}}, True, None),
        ({"body": {"stream": "true"}}, False, None),
        ({"body": {}, "nnrp": {"cancel_after_events": 2}}, False, 2),
    ],
)
def test_a_case_knows_what_its_driver_must_do(
    request_: dict[str, Any], streamed: bool, after: int | None
) -> None:
    (case,) = make_plan([recipe(request=request_)], record()).cases

    assert (case.streamed, case.cancel_after_events) == (streamed, after)


@pytest.mark.parametrize("after", [True, "2", -1, 1.0, None])
def test_a_case_cancels_after_a_number_of_events(after: Any) -> None:
    mistyped = recipe(request={"body": {}, "nnrp": {"cancel_after_events": after}})

    with pytest.raises(RecipeError, match="case: cancel_after_events is"):
        make_plan([mistyped], record())

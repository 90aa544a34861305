"""The plan: which recipes a target must answer, with the parameters of this run put in.

A mandatory or optional recipe is *selected* when the target declares every capability token that
it requires, else it is *not claimed*; experimental and deprecated recipes are *informational*.
Only selected cases are run. This is the selection of the public suite's `api-profile-plan`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from nnrp_backend.conformance.errors import ParameterError, RecipeError
from nnrp_backend.conformance.recipe import Expectation, Recipe, Request, Status
from nnrp_backend.profile.capabilities import CapabilityRecord

EXAMPLE_MODEL = "example-model"
"""The model of the profile's examples. As a parameter's default it means "any model you serve"."""

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")


class Choice(StrEnum):
    """What becomes of a recipe in this run."""

    SELECTED = "selected"
    NOT_CLAIMED = "not_claimed"
    INFORMATIONAL = "informational"


class PlannedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe with its parameters filled in, and whether it is to be run."""

    id: str
    operation: str
    status: Status
    choice: Choice
    required: tuple[str, ...]
    """The capability tokens that it needs, sorted."""
    lacking: tuple[str, ...]
    """Those of them, and those of its models, that the target does not claim."""
    request: Request
    expect: Expectation

    @property
    def streamed(self) -> bool:
        """Tell whether the body asks for a stream."""
        return self.request.body.get("stream") is True

    @property
    def cancel_after_events(self) -> int | None:
        """Give the number of events after which the driver cancels; None is never."""
        after: int | None = self.request.nnrp.get("cancel_after_events")
        return after


class Plan(msgspec.Struct, frozen=True):
    """Every recipe of a run, each with its choice."""

    adapter: str
    cases: tuple[PlannedCase, ...]
    extensions: frozenset[str] = frozenset()
    """Extensions that the target declares; an event type may be one."""

    def chosen(self, choice: Choice) -> list[PlannedCase]:
        """List the cases of one choice, in the recipes' order."""
        return [case for case in self.cases if case.choice is choice]

    @property
    def mandatory_not_claimed(self) -> list[str]:
        """List mandatory cases that the target does not claim: nothing was proven about them."""
        unclaimed = self.chosen(Choice.NOT_CLAIMED)
        return [case.id for case in unclaimed if case.status is Status.MANDATORY]


def make_plan(
    recipes: Iterable[Recipe],
    record: CapabilityRecord,
    *,
    model: str | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Plan:
    """Select the recipes that `record` claims, and put the parameters in.

    A parameter takes its value from `parameters`, else from its recipe. A recipe's default of
    `example-model` stands for `model`, else for the first model that the record lists.

    Raises:
        ParameterError: `parameters` names one that no recipe has, or a placeholder has no value.
        RecipeError: a recipe cancels after something that is not a number of events.
    """
    recipes = list(recipes)
    given = dict(parameters or {})
    known = {name for recipe in recipes for name in recipe.parameters}
    for name in sorted(given.keys() - known):
        raise ParameterError(name, "no recipe has it")
    models = [str(card.get("id")) for card in record.models]
    default = model or next(iter(models), EXAMPLE_MODEL)
    cases = (_plan_case(recipe, record.tokens(), models, default, given) for recipe in recipes)
    return Plan(
        adapter=record.adapter,
        cases=tuple(cases),
        extensions=frozenset(extension.name for extension in record.extensions),
    )


def required_tokens(recipe: Recipe) -> list[str]:
    """List a recipe's capability tokens, sorted: its own list, else derived from its request."""
    if recipe.required_capabilities:
        return sorted(set(recipe.required_capabilities))
    body = recipe.request.body
    tokens = {f"api.{recipe.operation}"}
    tokens.add("api.streaming" if body.get("stream") is True else "api.non_streaming")
    if body.get("tools"):
        tokens.add("api.tool_calls")
    if "cancel_after_events" in recipe.request.nnrp:
        tokens.add("api.cancellation")
    return sorted(tokens)


def _plan_case(
    recipe: Recipe,
    declared: Collection[str],
    models: list[str],
    model: str,
    given: Mapping[str, str],
) -> PlannedCase:
    values = {
        name: given.get(name, model if value == EXAMPLE_MODEL else value)
        for name, value in recipe.parameters.items()
    }
    after = recipe.request.nnrp.get("cancel_after_events", 0)
    if type(after) is not int or after < 0:
        raise RecipeError(recipe.id, f"cancel_after_events is {after!r}, not a number of events")
    required = required_tokens(recipe)
    lacking = [token for token in required if token not in declared]
    if models:
        wanted = fill(recipe.requires_models, values)
        lacking += [f"model {name}" for name in wanted if name not in models]
    return PlannedCase(
        id=recipe.id,
        operation=recipe.operation,
        status=recipe.status,
        choice=_choose(recipe.status, lacking),
        required=tuple(required),
        lacking=tuple(lacking),
        request=Request(
            body=fill(recipe.request.body, values),
            nnrp=fill(recipe.request.nnrp, values),
            envelope=fill(recipe.request.envelope, values),
            payload=recipe.request.payload,
        ),
        expect=recipe.expect,
    )


def _choose(status: Status, lacking: list[str]) -> Choice:
    if status in (Status.EXPERIMENTAL, Status.DEPRECATED):
        return Choice.INFORMATIONAL
    return Choice.NOT_CLAIMED if lacking else Choice.SELECTED


def fill(value: Any, values: Mapping[str, str]) -> Any:
    """Replace each string that is wholly a `${NAME}` in a JSON tree; return a new tree.

    Raises:
        ParameterError: a placeholder has no value.
    """
    match value:
        case dict():
            return {key: fill(member, values) for key, member in value.items()}
        case list():
            return [fill(member, values) for member in value]
        case str() if placeholder := _PLACEHOLDER.fullmatch(value):
            name = placeholder[1]
            if name not in values:
                raise ParameterError(name, "a recipe uses it and does not give it a value")
            return values[name]
        case _:
            return value

"""Recipes: what to ask a target, and what must come back (profile section 14).

A recipe file is JSON. The language is the public conformance suite's (`api-profile-recipe`), so
the suite's own recipes load unchanged, and four optional keys of ours are added to it:

- `expect.diagnostics`: whether a `response.diagnostics` event must, or must not, come.
- `requires_models`: models that the case is about; where the target's capability document lists
  its models and not these, the case is not claimed.
- `request.envelope`: members laid over the envelope, which may make it invalid.
- `request.payload`: text sent in place of the envelope, which need not even be JSON.

Anything else is refused: a mistyped key must not weaken a case in silence.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from nnrp_backend.conformance.errors import RecipeError

MANIFEST = "manifest.json"
"""A folder with this file is a suite: its `recipe_manifests` names the recipes, in order."""

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
T = TypeVar("T")


class TerminalState(StrEnum):
    """How an operation ended, in the words of the suite's results."""

    SUCCESS = "success"
    ERROR = "error"
    CANCELLED = "cancelled"


class Status(StrEnum):
    """How much weight a recipe has; only the first two are run."""

    MANDATORY = "mandatory"
    OPTIONAL = "optional"
    EXPERIMENTAL = "experimental"
    DEPRECATED = "deprecated"


class ExpectedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of the event sequence that a case must show."""

    type: NonEmpty
    optional: bool = False
    min_count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fields: dict[str, Any] = {}
    """Matched as a subset: objects by the members named, arrays by their first elements."""

    @property
    def least(self) -> int:
        """Give the number of such events that must be seen: one, or none when optional."""
        if self.min_count is not None:
            return self.min_count
        return 0 if self.optional else 1


class ExpectedDiagnostics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a case says about `response.diagnostics` (ours; the suite has no word for it)."""

    presence: Literal["required", "forbidden"]
    first: bool = False
    """Must it precede every other event?"""
    strict: bool = False
    """Is a member that this implementation does not know a finding?"""
    fields: dict[str, Any] = {}


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must come back."""

    events: list[ExpectedEvent]
    terminal: TerminalState
    diagnostics: ExpectedDiagnostics | None = None


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked: the envelope's `body` and `nnrp`, and ways to make the envelope invalid."""

    body: dict[str, Any]
    nnrp: dict[str, Any] = {}
    envelope: dict[str, Any] = {}
    payload: str | None = None


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case, before the parameters of a run are put in."""

    id: NonEmpty
    profile: Literal["openai-compatible"]
    schema_version: Literal["openai-compatible/1"]
    operation: NonEmpty
    request: Request
    expect: Expectation
    required_capabilities: list[NonEmpty] = []
    status: Status = Status.MANDATORY
    parameters: dict[str, str] = {}
    requires_models: list[NonEmpty] = []
    schema: str | None = msgspec.field(default=None, name="$schema")


class _Manifest(msgspec.Struct):
    recipe_manifests: list[str]


def builtin_recipes() -> list[Recipe]:
    """Load the recipes that come with this package."""
    return load_recipes(resources.files("nnrp_backend.conformance") / "recipes")


def load_recipes(folder: Traversable) -> list[Recipe]:
    """Load every recipe of `folder`: those its manifest names, else its `*.json` by name.

    Raises:
        RecipeError: a file cannot be read or is not a recipe, an id is used twice, or there is
            no recipe at all.
    """
    recipes: dict[str, Recipe] = {}
    for name in _recipe_names(folder):
        recipe = _decode(folder.joinpath(*PurePosixPath(name).parts), name, Recipe)
        if recipe.id in recipes:
            raise RecipeError(name, f"the id {recipe.id!r} is taken by another recipe")
        recipes[recipe.id] = recipe
    if not recipes:
        raise RecipeError(str(folder), "no recipe here")
    return list(recipes.values())


def _recipe_names(folder: Traversable) -> list[str]:
    if not folder.is_dir():
        raise RecipeError(str(folder), "not a folder")
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".json"))
    names = _decode(manifest, MANIFEST, _Manifest).recipe_manifests
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise RecipeError(MANIFEST, f"{name!r} points outside the folder")
    return names


def _decode(file: Traversable, name: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise RecipeError(name, str(error)) from error

import json
from pathlib import Path
from typing import Any

import pytest

from nnrp_backend.conformance.errors import RecipeError
from nnrp_backend.conformance.recipe import (
    ExpectedEvent,
    Status,
    TerminalState,
    builtin_recipes,
    load_recipes,
)

MINIMAL: dict[str, Any] = {
    "id": "a",
    "profile": "openai-compatible",
    "schema_version": "openai-compatible/1",
    "operation": "chat.completions.create",
    "request": {"body": {}},
    "expect": {"events": [], "terminal": "success"},
}


def write(folder: Path, name: str, document: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def test_a_minimal_recipe_has_the_defaults_of_the_language(tmp_path: Path) -> None:
    write(tmp_path, "a.json", MINIMAL)

    (recipe,) = load_recipes(tmp_path)

    assert recipe.status is Status.MANDATORY
    assert recipe.expect.terminal is TerminalState.SUCCESS
    assert recipe.expect.diagnostics is None
    assert (recipe.required_capabilities, recipe.parameters, recipe.requires_models) == ([], {}, [])


def test_an_expected_event_must_come_once_unless_it_says_otherwise() -> None:
    assert ExpectedEvent("t").least == 1
    assert ExpectedEvent("t", optional=True).least == 0
    assert ExpectedEvent("t", min_count=3).least == 3
    assert ExpectedEvent("t", optional=True, min_count=2).least == 2


def test_recipes_come_by_file_name(tmp_path: Path) -> None:
    write(tmp_path, "b.json", MINIMAL | {"id": "second"})
    write(tmp_path, "a.json", MINIMAL | {"id": "first"})
    write(tmp_path, "notes.txt", "not a recipe")

    assert [recipe.id for recipe in load_recipes(tmp_path)] == ["first", "second"]


def test_a_manifest_says_which_recipes_and_in_which_order(tmp_path: Path) -> None:
    write(tmp_path, "r/b.json", MINIMAL | {"id": "b"})
    write(tmp_path, "r/a.json", MINIMAL | {"id": "a"})
    write(tmp_path, "r/unlisted.json", MINIMAL | {"id": "unlisted"})
    write(tmp_path, "manifest.json", {"level": 1, "recipe_manifests": ["r/b.json", "r/a.json"]})

    assert [recipe.id for recipe in load_recipes(tmp_path)] == ["b", "a"]


@pytest.mark.parametrize("name", ["../a.json", "/etc/passwd", "r/../../a.json"])
def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path, name: str) -> None:
    write(tmp_path, "manifest.json", {"recipe_manifests": [name]})

    with pytest.raises(RecipeError, match="outside the folder"):
        load_recipes(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": ""}, "id"),
        ({"id": 7}, "id"),
        ({"profile": "other"}, "profile"),
        ({"schema_version": "openai-compatible/2"}, "schema_version"),
        ({"status": "maybe"}, "status"),
        ({"statsu": "optional"}, "statsu"),
        ({"parameters": {"MODEL_ID": 7}}, "parameters"),
        ({"request": {}}, "body"),
        ({"request": {"body": []}}, "body"),
        ({"request": {"body": {}, "headers": {}}}, "headers"),
        ({"expect": {"events": []}}, "terminal"),
        ({"expect": {"events": [], "terminal": "dropped"}}, "terminal"),
        ({"expect": {"events": [{"optional": True}], "terminal": "success"}}, "type"),
        (
            {"expect": {"events": [{"type": "t", "min_count": -1}], "terminal": "success"}},
            "min_count",
        ),
        (
            {"expect": {"events": [{"type": "t", "mincount": 2}], "terminal": "success"}},
            "mincount",
        ),
        (
            {
                "expect": {
                    "events": [],
                    "terminal": "success",
                    "diagnostics": {"presence": "perhaps"},
                }
            },
            "presence",
        ),
    ],
)
def test_anything_outside_the_language_is_refused(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    write(tmp_path, "a.json", MINIMAL | change)

    with pytest.raises(RecipeError, match=problem) as caught:
        load_recipes(tmp_path)

    assert caught.value.path == "a.json"


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff{}"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))

    with pytest.raises(RecipeError, match=r"^a\.json: "):
        load_recipes(tmp_path)


def test_an_id_is_used_once(tmp_path: Path) -> None:
    write(tmp_path, "a.json", MINIMAL)
    write(tmp_path, "b.json", MINIMAL)

    with pytest.raises(RecipeError, match=r"^b\.json: the id 'a' is taken"):
        load_recipes(tmp_path)


def test_an_empty_or_absent_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipe here"):
        load_recipes(tmp_path)
    with pytest.raises(RecipeError, match="not a folder"):
        load_recipes(tmp_path / "nowhere")


def test_a_manifest_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "manifest.json", {"recipe_manifests": ["gone.json"]})

    with pytest.raises(RecipeError, match=r"^gone\.json: "):
        load_recipes(tmp_path)


def test_the_built_in_set_covers_the_profile() -> None:
    recipes = {recipe.id.removeprefix("nnrp-backend."): recipe for recipe in builtin_recipes()}

    # What the public suite's Level 1 covers.
    assert {
        "chat.streamed",
        "chat.whole",
        "chat.usage.streamed",
        "chat.tools.streamed",
        "chat.cancel.streamed",
        "negative.body.messages-missing",
        "negative.operation.unsupported",
        "negative.model.backend-error",
    } <= recipes.keys()
    # Profile section 14: "negative cases such as invalid body, unsupported model, cancellation,
    # and malformed stream order", and "optional diagnostics expectations".
    assert {
        "negative.body.not-an-object",
        "negative.model.unsupported",
        "chat.cancel.streamed",
        "negative.stream-order.tools",
        "chat.diagnostics.asked",
        "chat.diagnostics.unasked",
    } <= recipes.keys()
    for name, recipe in recipes.items():
        refused = name.startswith("negative.") and "stream-order" not in name
        assert (recipe.expect.terminal is TerminalState.ERROR) is refused, name

from nnrp_backend.conformance.errors import (
    CapabilityError,
    ConformanceError,
    ParameterError,
    RecipeError,
)


def test_each_error_says_where_and_why() -> None:
    recipe = RecipeError("chat.json", "not an object")
    parameter = ParameterError("MODEL_ID", "no recipe has it")
    capability = CapabilityError("tcp://127.0.0.1:1", "it has none")

    assert str(recipe) == "chat.json: not an object"
    assert (recipe.path, recipe.problem) == ("chat.json", "not an object")
    assert str(parameter) == "parameter MODEL_ID: no recipe has it"
    assert parameter.name == "MODEL_ID"
    assert str(capability) == "capabilities of tcp://127.0.0.1:1: it has none"
    assert capability.source == "tcp://127.0.0.1:1"
    assert all(isinstance(each, ConformanceError) for each in (recipe, parameter, capability))

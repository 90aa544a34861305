import contextlib
import json
from datetime import datetime, time, timedelta
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.adapter.sim.schema import MAX_VALUES, SchemaError, generate

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


KEYWORDS = (
    *("a", "$defs", "$ref", "allOf", "anyOf", "oneOf", "const", "enum", "type", "properties"),
    *("required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
    *("minLength", "maxLength", "format", "minimum", "exclusiveMaximum", "multipleOf", "not"),
)


def assert_satisfies(schema: Any, value: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(value)
    json.dumps(value, allow_nan=False)


TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "twin": {"$ref": "#/$defs/node"},
            },
            "required": ["name", "children", "next"],
        }
    },
    "$ref": "#/$defs/node",
}

SHAPES = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
            "required": ["kind", "radius"],
        },
        {
            "type": "object",
            "properties": {"kind": {"enum": ["square", "box"]}, "side": {"type": "number"}},
            "required": ["kind", "side"],
        },
    ]
}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "string"},
        {"type": "string", "minLength": 10},
        {"type": "string", "maxLength": 2},
        {"type": "string", "minLength": 4, "maxLength": 4},
        {"minLength": 7},
        *({"type": "string", "format": name} for name in ("date", "email", "ipv4", "ipv6", "uuid")),
        {"type": "string", "format": "of-our-own"},
        {"type": "integer"},
        {"type": "integer", "minimum": 18, "maximum": 120},
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
        {"type": "integer", "minimum": 10, "multipleOf": 7},
        {"type": "integer", "minimum": 0.5, "maximum": 1.5},
        {"type": "integer", "minimum": 2, "multipleOf": 1.5},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
        {"type": "number", "maximum": -3.25},
        {"type": "number", "minimum": 0.3, "maximum": 0.3},
        {"type": "number", "minimum": 2, "exclusiveMinimum": 2},
        {"multipleOf": 0.5, "minimum": 10.1},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["null", "integer"]},
        {"type": ["null"]},
        {"const": {"a": [1]}},
        {"const": None},
        {"enum": ["red", "green"]},
        {"type": "string", "enum": [1, "red"]},
        {"type": "integer", "enum": ["red", 2.0]},
        {"type": "number", "enum": [True, 2.5]},
        {"type": "array", "enum": [{}, []]},
        {"type": "object", "enum": [None, {}]},
        {"type": "boolean", "enum": [0, False]},
        {"type": "array"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3},
        {"type": "array", "maxItems": 0, "items": {"type": "integer"}},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False},
        {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 2},
        {"type": "array", "items": False},
        {"items": {"type": "boolean"}, "uniqueItems": False},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        {"type": "object", "required": ["a"]},
        {"required": ["a"], "additionalProperties": {"type": "integer"}},
        {"properties": {"a/b~c": {"type": "null"}}},
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "T"},
        {"allOf": [{"type": "integer"}], "description": "one"},
        {"oneOf": [{"type": "integer"}]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"type": ["null", "string"]}, {"type": "number"}]},
        SHAPES,
        TREE,
        {"$defs": {"s": SHAPES["oneOf"][0]}, "oneOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]},
        {"definitions": {"a/b": {"type": "integer"}}, "$ref": "#/definitions/a~1b"},
        {"type": "object", "properties": {"self": {"$ref": "#"}, "n": {"type": "integer"}}},
        {"x-unknown": 1, "$comment": "ignored", "deprecated": True, "type": "string"},
    ],
    ids=json.dumps,
)
def test_the_value_satisfies_its_schema(schema: Any) -> None:
    assert_satisfies(schema, generate(schema))


def test_formats_that_the_checker_does_not_know() -> None:
    made = {name: generate({"format": name}) for name in ("date-time", "time", "uri", "hostname")}
    assert datetime.fromisoformat(made["date-time"]).utcoffset() == timedelta(0)
    assert time.fromisoformat(made["time"]).utcoffset() == timedelta(0)
    assert urlsplit(made["uri"]).hostname == made["hostname"]
    assert generate({"format": "duration"}) == "PT1S"


def test_the_same_schema_gets_the_same_value() -> None:
    assert generate(TREE) == generate(TREE) == {"name": "sim", "children": [], "next": None}


def test_optional_properties_are_shown() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert generate(schema) == {"a": 1}


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        (False, "", "the schema false has no value"),
        (7, "", "a schema is an object, true or false"),
        ({"type": "text"}, "", "'text' is not a type"),
        ({"type": "string", "pattern": "^a"}, "", "pattern is not supported"),
        ({"not": {}}, "", "not is not supported"),
        ({"not": False}, "", "not is not supported"),
        ({"type": "object", "minProperties": 1}, "", "minProperties is not supported"),
        ({"uniqueItems": True}, "", "uniqueItems is not supported"),
        ({"if": {}, "then": {}}, "", "if is not supported"),
        ({"enum": [1], "minimum": 2}, "", "minimum beside enum is not supported"),
        ({"const": 1, "type": "string"}, "", "no value of const has the type"),
        ({"enum": []}, "", "no value of enum has the type"),
        ({"enum": 5}, "", "enum is a list"),
        ({"anyOf": [{}], "type": "object"}, "", "type beside anyOf is not supported"),
        ({"anyOf": []}, "/anyOf", "anyOf is a list of schemas"),
        ({"allOf": [{}, {}]}, "/allOf", "allOf of several branches"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf", "may overlap"),
        ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "/oneOf", "may overlap"),
        ({"oneOf": [{}, {"type": "object"}]}, "/oneOf", "may overlap"),
        ({"oneOf": [True, {"type": "object"}]}, "/oneOf", "may overlap"),
        ({"oneOf": [SHAPES["oneOf"][0]] * 2}, "/oneOf", "may overlap"),
        ({"oneOf": [SHAPES["oneOf"][0], {"type": "object"}]}, "/oneOf", "may overlap"),
        ({"$ref": "https://example.com/s"}, "/$ref", "references into the same document"),
        ({"$ref": 5}, "/$ref", "references into the same document"),
        ({"$ref": "#/$defs/gone"}, "/$ref", "#/$defs/gone is not in the document"),
        ({"$ref": "#"}, "/$ref", "# needs itself without an end"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "/anyOf/1/$ref", "needs itself without"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "oneOf": [{"$ref": "#/$defs/a"}, {}]},
         "/oneOf", "#/$defs/a refers to itself"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "b"}}},
         "/properties/a", "pattern is not supported"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "/properties/a/$ref",
         "needs itself without an end"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "/items/$ref",
         "needs itself without an end"),
        ({"type": "object", "required": ["a"], "additionalProperties": False},
         "/additionalProperties", "the schema false has no value"),
        ({"type": "object", "properties": []}, "", "properties is an object"),
        ({"type": "object", "required": "a"}, "", "required is a list of names"),
        ({"type": "object", "required": [[]]}, "", "required is a list of names"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "", "no array has such a length"),
        ({"type": "array", "minItems": 10**9}, "", "no array has such a length"),
        ({"type": "array", "minItems": -1}, "", "minItems is a whole number from 0"),
        ({"type": "array", "minItems": True}, "", "minItems is a whole number from 0"),
        ({"type": "array", "prefixItems": {}}, "", "prefixItems is a list"),
        ({"type": "array", "minItems": 1, "items": False}, "/items", "false has no value"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "", "no string has such a length"),
        ({"type": "string", "minLength": 10**9}, "", "no string has such a length"),
        ({"format": "date", "maxLength": 3}, "", "format beside such a length"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "", "no number satisfies the bounds"),
        ({"type": "integer", "minimum": "3"}, "", "no number satisfies the bounds"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_its_place(schema: Any, path: str, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        generate(schema)
    assert caught.value.path == path
    assert reason in str(caught.value)


def test_a_small_schema_cannot_ask_for_an_enormous_value() -> None:
    levels = {
        f"d{level}": {"properties": {"a": {"$ref": f"#/$defs/d{level + 1}"},
                                     "b": {"$ref": f"#/$defs/d{level + 1}"}}}
        for level in range(30)
    }  # fmt: skip
    with pytest.raises(SchemaError, match=f"more than {MAX_VALUES} values"):
        generate({"$defs": {**levels, "d30": {"type": "null"}}, "$ref": "#/$defs/d0"})


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["object", "#", "a", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner),
    max_leaves=12,
)


@given(anything)
def test_nonsense_is_refused_and_nothing_worse(schema: Any) -> None:
    with contextlib.suppress(SchemaError):
        json.dumps(generate(schema))


def test_nesting_that_references_multiply_has_a_limit() -> None:
    """Each definition is within the depth of a body, and refers to the next at its bottom."""
    definitions: dict[str, Any] = {}
    for number in range(60):
        schema: Any = {"$ref": f"#/$defs/{number + 1}"} if number < 59 else {"type": "null"}
        for _ in range(50):
            schema = {"type": "array", "items": schema}
        definitions[str(number)] = schema
    with pytest.raises(SchemaError, match="nested too deeply"):
        generate({"$ref": "#/$defs/0", "$defs": definitions})


def test_references_inside_each_other_have_a_limit() -> None:
    chain = {f"d{level}": {"$ref": f"#/$defs/d{level + 1}"} for level in range(1000)}
    with pytest.raises(SchemaError, match="more than 64 references"):
        generate({"$defs": {**chain, "d1000": {}}, "$ref": "#/$defs/d0"})


scalars = st.one_of(
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-1000, 1000),
        st.integers(0, 50),
    ),
    st.builds(
        lambda low, span: {"type": "number", "exclusiveMinimum": low, "maximum": low + span},
        st.floats(-1e6, 1e6),
        st.floats(1, 10),
    ),
    st.builds(
        lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
        st.integers(0, 20),
        st.integers(0, 5),
    ),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"enum": ["a", 1, None]}, {}, True]),
)


def nested(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda properties, count, closed: {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:count],
                "additionalProperties": not closed,
            },
            st.dictionaries(st.text(max_size=4), schemas, max_size=4),
            st.integers(0, 4),
            st.booleans(),
        ),
        st.builds(
            lambda items, count: {"type": "array", "items": items, "minItems": count},
            schemas,
            st.integers(0, 3),
        ),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(schemas, min_size=1, max_size=3)),
    )


@given(st.recursive(scalars, nested, max_leaves=8))
def test_any_schema_of_the_subset_is_satisfied(schema: Any) -> None:
    assert_satisfies(schema, generate(schema))

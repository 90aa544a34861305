"""Build a JSON value that satisfies a JSON Schema, without a model.

The subset (draft 2020-12): `true`; `type`, also a list; `const` and `enum`, beside `type` at most;
`properties`, `required`, `additionalProperties`; `items`, `prefixItems`, `minItems`, `maxItems`;
`minLength`, `maxLength`, `format`; `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`,
`multipleOf`; and, without assertions beside them, `anyOf`, `allOf` of one branch, `oneOf` of
branches that exclude each other by type or by a constant property, and `$ref` into the document.
Annotations and keywords that JSON Schema does not know are ignored. Everything else is refused: an
answer that might not satisfy its schema would be worse than none.
"""

from typing import Any, Final

from nnrp_backend.adapter.sim.numbers import choose_number

MAX_VALUES: Final = 10_000
"""Values in one answer: references can make a small schema stand for an enormous one."""
MAX_REFERENCES: Final = 64
"""References inside each other; what stands in the document itself is as deep as JSON may be."""
MAX_LENGTH: Final = 100_000
"""Characters that `minLength` may ask for."""

COMBINATORS: Final = ("$ref", "allOf", "anyOf", "oneOf")

_UNSUPPORTED: Final = frozenset(
    {
        "not",
        "if",
        "pattern",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "contains",
        "uniqueItems",
        "$dynamicRef",
    }
)
_ASSERTIONS: Final[dict[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "format"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
}
"""In the order in which a schema without `type` is guessed."""
_ALL_ASSERTIONS: Final = frozenset({"type", "const", "enum", *COMBINATORS}).union(
    *_ASSERTIONS.values()
)

_FORMATS: Final = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "email": "sim@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class SchemaError(Exception):
    """The schema is outside the subset, or no value satisfies it.

    `path` is the JSON pointer of the place.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{reason} (at {path or 'the top'})")
        self.path = path
        self.reason = reason


class _RecursionFound(SchemaError):
    """A `$ref` leads back into itself; whoever can do without the value does."""


def generate(schema: Any) -> Any:
    """Return a value that satisfies `schema`: for the same schema always the same one.

    Raises:
        SchemaError: the schema is outside the subset, or cannot be satisfied.
    """
    try:
        return _Generator(schema).value(schema, "")
    except RecursionError:
        # Each reference may add the whole depth of a body.
        raise SchemaError("", "the schema is nested too deeply") from None


class _Generator:
    """One walk over one schema document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._open_refs: set[str] = set()
        self._values = 0

    def value(self, schema: Any, path: str) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise SchemaError(path, f"the answer would hold more than {MAX_VALUES} values")
        if schema is True:
            return "sim"
        if schema is False:
            raise SchemaError(path, "the schema false has no value")
        if not isinstance(schema, dict):
            raise SchemaError(path, "a schema is an object, true or false")
        _refuse_unsupported(schema, path)
        if "const" in schema or "enum" in schema:
            return _listed(schema, path)
        for keyword in COMBINATORS:
            if keyword in schema:
                return self._combined(schema, keyword, path)
        return self._typed(schema, path)

    def _combined(self, schema: dict[str, Any], keyword: str, path: str) -> Any:
        if beside := (schema.keys() & _ALL_ASSERTIONS) - {keyword}:
            raise SchemaError(path, f"{min(beside)} beside {keyword} is not supported")
        path = f"{path}/{keyword}"
        if keyword == "$ref":
            return self._referenced(schema[keyword], path)
        branches = schema[keyword]
        if not isinstance(branches, list) or not branches:
            raise SchemaError(path, f"{keyword} is a list of schemas")
        if keyword == "allOf" and len(branches) > 1:
            raise SchemaError(path, "allOf of several branches is not supported")
        if keyword == "oneOf":
            self._check_exclusive(branches, path)
        return self._first_possible(branches, path)

    def _first_possible(self, branches: list[Any], path: str) -> Any:
        found: _RecursionFound | None = None
        for number, branch in enumerate(branches):
            try:
                return self.value(branch, f"{path}/{number}")
            except _RecursionFound as error:
                found = error
        assert found is not None  # there was at least one branch
        raise found

    def _check_exclusive(self, branches: list[Any], path: str) -> None:
        """Refuse branches of which two could accept the same value."""
        if len(branches) == 1:
            return
        resolved = [self._resolve(branch, path) for branch in branches]
        if not (_differ_by_type(resolved) or _differ_by_constant(resolved)):
            raise SchemaError(path, "oneOf of branches that may overlap is not supported")

    def _referenced(self, reference: Any, path: str) -> Any:
        target = self._target(reference, path)
        if reference in self._open_refs:
            raise _RecursionFound(path, f"{reference} needs itself without an end")
        if len(self._open_refs) >= MAX_REFERENCES:
            raise SchemaError(path, f"more than {MAX_REFERENCES} references inside each other")
        self._open_refs.add(reference)
        try:
            return self.value(target, reference.removeprefix("#"))
        finally:
            self._open_refs.discard(reference)

    def _resolve(self, schema: Any, path: str) -> Any:
        """Follow the references at the top of `schema`."""
        seen: set[str] = set()
        while isinstance(schema, dict) and "$ref" in schema:
            reference = schema["$ref"]
            schema = self._target(reference, path)
            if reference in seen:
                raise _RecursionFound(path, f"{reference} refers to itself")
            seen.add(reference)
        return schema

    def _target(self, reference: Any, path: str) -> Any:
        """Look a reference up: `#`, or `#/` and a JSON pointer (RFC 6901)."""
        if not isinstance(reference, str) or (reference != "#" and reference[:2] != "#/"):
            raise SchemaError(path, "only references into the same document are supported")
        target = self._document
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                raise SchemaError(path, f"{reference} is not in the document")
            target = target[key]
        return target

    def _typed(self, schema: dict[str, Any], path: str) -> Any:
        match _chosen_type(schema, path):
            case "object":
                return self._object(schema, path)
            case "array":
                return self._array(schema, path)
            case "string":
                return _string(schema, path)
            case "boolean":
                return True
            case "null":
                return None
            case number_type:
                number = choose_number(schema, integer=number_type == "integer")
                if number is None:
                    raise SchemaError(path, "no number satisfies the bounds")
                return number

    def _object(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaError(path, "properties is an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError(path, "required is a list of names")
        made: dict[str, Any] = {}
        for name, subschema in properties.items():
            try:
                made[name] = self.value(subschema, f"{path}/properties/{_escaped(name)}")
            except _RecursionFound:
                if name in required:
                    raise
        others = schema.get("additionalProperties", True)
        for name in required:
            if name not in made:
                made[name] = self.value(others, f"{path}/additionalProperties")
        return made

    def _array(self, schema: dict[str, Any], path: str) -> list[Any]:
        least = _bound(schema, "minItems", 0, path)
        most = _bound(schema, "maxItems", MAX_VALUES, path)
        if least > most or least > MAX_VALUES:
            raise SchemaError(path, "no array has such a length")
        prefix = schema.get("prefixItems", [])
        if not isinstance(prefix, list):
            raise SchemaError(path, "prefixItems is a list")
        # One more item than there must be, where the schema names one, shows what it is like.
        named = len(prefix) or ("items" in schema and schema["items"] is not False)
        wanted = min(max(least, int(named)), most)
        made: list[Any] = []
        for number in range(wanted):
            inside = number < len(prefix)
            place = f"{path}/prefixItems/{number}" if inside else f"{path}/items"
            try:
                made.append(self.value(prefix[number] if inside else schema.get("items", True),
                                       place))  # fmt: skip
            except _RecursionFound:
                if number < least:
                    raise
                break
        return made


def _refuse_unsupported(schema: dict[str, Any], path: str) -> None:
    for keyword in schema.keys() & _UNSUPPORTED:
        # `"uniqueItems": false` asks for nothing.
        if schema[keyword] is not False or keyword == "not":
            raise SchemaError(path, f"{keyword} is not supported")


def _listed(schema: dict[str, Any], path: str) -> Any:
    """Return the constant, or the first listed value of the right type."""
    keyword = "const" if "const" in schema else "enum"
    if beside := (schema.keys() & _ALL_ASSERTIONS) - {keyword, "type"}:
        raise SchemaError(path, f"{min(beside)} beside {keyword} is not supported")
    values = [schema["const"]] if keyword == "const" else schema["enum"]
    if not isinstance(values, list):
        raise SchemaError(path, "enum is a list")
    types = _types(schema, path)
    for value in values:
        if not types or types & _types_of(value):
            return value
    raise SchemaError(path, f"no value of {keyword} has the type")


def _types(schema: dict[str, Any], path: str) -> set[str]:
    declared = schema.get("type", [])
    types = declared if isinstance(declared, list) else [declared]
    for name in types:
        if name not in ("object", "array", "string", "integer", "number", "boolean", "null"):
            raise SchemaError(path, f"{name!r} is not a type")
    return set(types)


def _types_of(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}


def _chosen_type(schema: dict[str, Any], path: str) -> str:
    if _types(schema, path):
        declared = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return str(next((name for name in declared if name != "null"), "null"))
    for name, keywords in _ASSERTIONS.items():
        if schema.keys() & keywords:
            return name
    return "string"


def _string(schema: dict[str, Any], path: str) -> str:
    least = _bound(schema, "minLength", 0, path)
    most = _bound(schema, "maxLength", MAX_LENGTH, path)
    known = _FORMATS.get(str(schema.get("format")))
    if known is not None:
        if not least <= len(known) <= most:
            raise SchemaError(path, "format beside such a length is not supported")
        return known
    if least > most or least > MAX_LENGTH:
        raise SchemaError(path, "no string has such a length")
    text = "sim"
    return (text * (least // len(text) + 1))[: min(max(least, len(text)), most)]


def _bound(schema: dict[str, Any], keyword: str, default: int, path: str) -> int:
    bound = schema.get(keyword, default)
    if not isinstance(bound, int) or isinstance(bound, bool) or bound < 0:
        raise SchemaError(path, f"{keyword} is a whole number from 0")
    return bound


def _differ_by_type(branches: list[Any]) -> bool:
    types = [_types(branch, "") if isinstance(branch, dict) else set() for branch in branches]
    if not all(types):
        return False
    # Every integer is a number too.
    widened = [found | {"integer"} if "number" in found else found for found in types]
    return sum(map(len, widened)) == len(set().union(*widened))


def _differ_by_constant(branches: list[Any]) -> bool:
    """Is there a property that every branch requires, each with constants of its own?"""
    constants = [_required_constants(branch) for branch in branches]
    return any(_are_disjoint([own.get(name, []) for own in constants]) for name in constants[0])


def _are_disjoint(groups: list[list[str]]) -> bool:
    members = [member for group in groups for member in group]
    return all(groups) and len(members) == len(set(members))


def _required_constants(branch: Any) -> dict[str, list[str]]:
    """Return the properties that an object of `branch` must have with one of some strings."""
    if not isinstance(branch, dict) or branch.get("type") != "object":
        return {}
    properties, required = branch.get("properties"), branch.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    constants = {}
    for name, schema in properties.items():
        if name in required and isinstance(schema, dict):
            values = [schema["const"]] if "const" in schema else schema.get("enum")
            if isinstance(values, list) and all(isinstance(value, str) for value in values):
                constants[name] = values
    return constants


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")

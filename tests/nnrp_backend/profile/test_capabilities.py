import json
from typing import Any

import jsonschema
import pytest

from nnrp_backend.profile.capabilities import CapabilityRecord, Extension, OperationCapability
from nnrp_backend.profile.errors import ErrorCode, ProfileError

RECORD = CapabilityRecord(
    adapter="nnrp-backend-test",
    levels=(1, 2, 3),
    operations=(
        OperationCapability(name="chat.completions.create", streaming=True, tool_calls=True),
        OperationCapability(name="responses.create", streaming=True, tool_calls=True),
        OperationCapability(name="models.list", cancellation=False),
        OperationCapability(name="embeddings.create"),
        OperationCapability(name="tokenize", cancellation=False),
    ),
    models=({"id": "org/m", "owned_by": "sim", "created": 5, "max_model_len": 64},),
    extensions=(
        Extension(name="openai_chunk.final", description="Chunks may be sent on as they are."),
        Extension(name="odd", critical=True),
    ),
)

# Restated from the public conformance suite's schema of the manifest.
MANIFEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["adapter", "profile", "schema_version", "compatibility_levels", "operations"],
    "properties": {
        "adapter": {"type": "string", "minLength": 1},
        "profile": {"const": "openai-compatible"},
        "schema_version": {"const": "openai-compatible/1"},
        "compatibility_levels": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "minItems": 1,
            "uniqueItems": True,
        },
        "operations": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "streaming", "non_streaming", "tool_calls"],
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "streaming": {"type": "boolean"},
                    "non_streaming": {"type": "boolean"},
                    "tool_calls": {"type": "boolean"},
                    "cancellation": {"type": "boolean"},
                },
                "additionalProperties": False,
            },
        },
        "extensions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "critical"],
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "critical": {"type": "boolean"},
                    "description": {"type": "string"},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}


class TestProjections:
    def test_the_document(self) -> None:
        # The shape of the profile's section 13.
        one = CapabilityRecord(
            adapter="a",
            levels=(1,),
            operations=(
                OperationCapability(
                    name="chat.completions.create",
                    streaming=True,
                    tool_calls=True,
                    cancellation=False,
                ),
            ),
            models=({"id": "example-model", "owned_by": "adapter", "max_model_len": 5},),
        )
        assert one.document() == {
            "profile": "openai-compatible",
            "schema_version": "openai-compatible/1",
            "compatibility_levels": [1],
            "operations": [
                {
                    "name": "chat.completions.create",
                    "streaming": True,
                    "non_streaming": True,
                    "tool_calls": True,
                    "cancellation": False,
                }
            ],
            "models": [{"id": "example-model", "owned_by": "adapter"}],
        }

    def test_the_manifest_fits_the_suites_schema(self) -> None:
        jsonschema.validate(RECORD.manifest(), MANIFEST_SCHEMA)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(RECORD.document(), MANIFEST_SCHEMA)

    def test_they_differ_in_models_and_adapter_only(self) -> None:
        document, manifest = RECORD.document(), RECORD.manifest()
        assert manifest.pop("adapter") == "nnrp-backend-test"
        assert document.pop("models") == [{"id": "org/m", "owned_by": "sim"}]
        assert document == manifest
        assert document["extensions"][1] == {"name": "odd", "critical": True}

    def test_tokens(self) -> None:
        assert RECORD.narrowed([1, 3]).tokens() == {
            "api.level1",
            "api.level3",
            "api.chat.completions.create",
            "api.models.list",
            "api.embeddings.create",
            "api.tokenize",
            "api.streaming",
            "api.non_streaming",
            "api.tool_calls",
            "api.cancellation",
            "api.extension.openai_chunk.final",
            "api.extension.odd",
            "api.extension.odd.critical",
        }

    def test_flags_are_tokens_only_when_some_operation_has_them(self) -> None:
        listing = CapabilityRecord(
            adapter="a",
            levels=(3,),
            operations=(OperationCapability(name="models.list", cancellation=False),),
        )
        assert listing.tokens() == {"api.level3", "api.models.list", "api.non_streaming"}


class TestNarrowing:
    def test_a_level_takes_its_operations_along(self) -> None:
        narrow = RECORD.narrowed([3, 1])
        assert narrow.levels == (1, 3)
        assert not narrow.serves("responses.create")
        assert narrow.serves("chat.completions.create")
        assert narrow.serves("tokenize")
        assert not RECORD.narrowed([1]).serves("models.list")
        assert not RECORD.narrowed([3]).serves("chat.completions.create")

    def test_levels_that_are_not_offered_are_nothing_to_keep(self) -> None:
        assert RECORD.narrowed([1, 3]).narrowed([1, 2]).levels == (1,)
        with pytest.raises(ValueError, match="some of 1, 2, 3"):
            RECORD.narrowed([4])

    def test_operations_served_without_their_level_stay(self) -> None:
        # Level 3 has two operations; a text model that also lists models does not claim it.
        chat_only = CapabilityRecord(
            adapter="a",
            levels=(1,),
            operations=(
                OperationCapability(name="chat.completions.create"),
                OperationCapability(name="models.list"),
            ),
        )
        assert chat_only.narrowed([1]) == chat_only


class TestReading:
    def test_a_document_is_read_back(self) -> None:
        read = CapabilityRecord.from_document(RECORD.document(), adapter="nnrp-backend-test")
        assert read.document() == RECORD.document()
        assert read.manifest() == RECORD.manifest()

    def test_what_a_document_does_not_claim_it_does_not_have(self) -> None:
        document = RECORD.document()
        for operation in document["operations"]:
            del operation["cancellation"]
        del document["extensions"], document["models"]
        document["unknown"] = 1
        read = CapabilityRecord.from_document(document)
        assert not any(operation.cancellation for operation in read.operations)
        assert (read.extensions, read.models, read.adapter) == ((), (), "")

    @pytest.mark.parametrize(
        "wrong",
        [
            None,
            [],
            {},
            {**RECORD.document(), "profile": "other"},
            {**RECORD.document(), "schema_version": "openai-compatible/2"},
            {**RECORD.document(), "operations": [{"name": "x"}]},
            {**RECORD.document(), "compatibility_levels": ["1"]},
        ],
    )
    def test_what_is_no_document(self, wrong: Any) -> None:
        with pytest.raises(ProfileError) as caught:
            CapabilityRecord.from_document(wrong)
        assert caught.value.code == ErrorCode.ADAPTER_RUNTIME_ERROR

    def test_it_travels_in_the_model_list(self) -> None:
        body = RECORD.models_list()
        listed = json.loads(body)
        assert listed["object"] == "list"
        assert listed["data"] == [
            {
                "object": "model",
                "id": "org/m",
                "owned_by": "sim",
                "created": 5,
                "max_model_len": 64,
            }
        ]
        assert listed["nnrp"]["capabilities"] == RECORD.document()
        read = CapabilityRecord.from_models_list(body)
        assert read is not None
        assert read.manifest() == RECORD.manifest()
        assert read.models == tuple(listed["data"])

    @pytest.mark.parametrize("nnrp", [{}, {"nnrp": None}, {"nnrp": {"other": 1}}])
    def test_a_list_without_document(self, nnrp: dict[str, Any]) -> None:
        body = json.dumps({"object": "list", "data": [], **nnrp}).encode()
        assert CapabilityRecord.from_models_list(body) is None

    @pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data":1}', b'{"data":[],"nnrp":1}'])
    def test_what_is_no_list(self, body: bytes) -> None:
        with pytest.raises(ProfileError):
            CapabilityRecord.from_models_list(body)


def test_questions() -> None:
    assert RECORD.serves("tokenize")
    assert not RECORD.serves("rerank.create")
    assert RECORD.extends("openai_chunk.final")
    assert not RECORD.extends("openai_chunk")

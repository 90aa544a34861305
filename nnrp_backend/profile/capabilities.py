"""What a worker offers: one record, projected to the capability document and the manifest."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.operations import LEVEL_OF, PROFILE, SCHEMA_VERSION

_FLAGS: Final = ("streaming", "non_streaming", "tool_calls", "cancellation")


class OperationCapability(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that the worker serves."""

    name: str
    streaming: bool = False
    non_streaming: bool = True
    tool_calls: bool = False
    cancellation: bool = True
    """A CANCEL is answered, and reaches the engine."""


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """One declared extension."""

    name: str
    critical: bool = False
    """A consumer that does not know it must not use the worker."""
    description: str | None = None

    def declaration(self) -> dict[str, Any]:
        """Return the member of `extensions` that declares it."""
        declared: dict[str, Any] = {"name": self.name, "critical": self.critical}
        return (
            declared if self.description is None else declared | {"description": self.description}
        )


class CapabilityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker offers (profile section 13)."""

    adapter: str
    levels: tuple[int, ...]
    operations: tuple[OperationCapability, ...]
    models: tuple[dict[str, Any], ...] = ()
    """Model cards: `id`, `owned_by`, and what else the engine tells (`max_model_len`, ...)."""
    extensions: tuple[Extension, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the capability document: with models, without the adapter's name."""
        models = [{"id": card["id"], "owned_by": card.get("owned_by", "")} for card in self.models]
        return {
            "profile": PROFILE,
            "schema_version": SCHEMA_VERSION,
            **self._offers(),
            "models": models,
        }

    def manifest(self) -> dict[str, Any]:
        """Return the conformance manifest: with the adapter's name, without models.

        The public suite's schema for it forbids members that it does not know, models included.
        """
        return {
            "adapter": self.adapter,
            "profile": PROFILE,
            "schema_version": SCHEMA_VERSION,
            **self._offers(),
        }

    def _offers(self) -> dict[str, Any]:
        offers: dict[str, Any] = {
            "compatibility_levels": list(self.levels),
            "operations": [msgspec.structs.asdict(operation) for operation in self.operations],
        }
        if self.extensions:
            offers["extensions"] = [extension.declaration() for extension in self.extensions]
        return offers

    def tokens(self) -> frozenset[str]:
        """Return the capability tokens that conformance recipes may require."""
        tokens = {f"api.level{level}" for level in self.levels}
        for operation in self.operations:
            tokens.add(f"api.{operation.name}")
            tokens.update(f"api.{flag}" for flag in _FLAGS if getattr(operation, flag))
        for extension in self.extensions:
            tokens.add(f"api.extension.{extension.name}")
            if extension.critical:
                tokens.add(f"api.extension.{extension.name}.critical")
        return frozenset(tokens)

    def narrowed(self, levels: Iterable[int]) -> "CapabilityRecord":
        """Return a record that offers no other compatibility levels than these.

        Operations of the levels taken away go with them. Those that no level brings, or that the
        worker serves without claiming their level, stay.

        Raises:
            ValueError: none of the levels is offered.
        """
        kept = tuple(level for level in self.levels if level in set(levels))
        if not kept:
            raise ValueError(f"levels must have some of {', '.join(map(str, self.levels))}")
        dropped = set(self.levels) - set(kept)
        operations = tuple(
            operation
            for operation in self.operations
            if LEVEL_OF.get(operation.name) not in dropped
        )
        return msgspec.structs.replace(self, levels=kept, operations=operations)

    def serves(self, operation: str) -> bool:
        """Whether the worker advertises an operation."""
        return any(offered.name == operation for offered in self.operations)

    def extends(self, extension: str) -> bool:
        """Whether the worker declares an extension."""
        return any(declared.name == extension for declared in self.extensions)

    def models_list(self) -> bytes:
        """Return the body of `models.list`, with the document under `nnrp.capabilities`.

        The profile has no operation that fetches the document; this is how ours travels.
        """
        return msgspec.json.encode(
            {
                "object": "list",
                "data": [{"object": "model", **card} for card in self.models],
                "nnrp": {"capabilities": self.document(), "adapter": self.adapter},
            }
        )

    @classmethod
    def from_document(cls, document: Any, *, adapter: str = "") -> "CapabilityRecord":
        """Read a capability document; members that are not known are ignored.

        Raises:
            ProfileError: `adapter_runtime_error`, when it is none of this profile.
        """
        try:
            read = msgspec.convert(document, _Document)
        except msgspec.ValidationError as exc:
            raise _malformed(str(exc)) from None
        if (read.profile, read.schema_version) != (PROFILE, SCHEMA_VERSION):
            raise _malformed(f"it is for {read.profile!r}, {read.schema_version!r}")
        return cls(
            adapter=adapter,
            levels=read.compatibility_levels,
            operations=tuple(
                OperationCapability(**msgspec.structs.asdict(offered))
                for offered in read.operations
            ),
            models=tuple(card for card in read.models if isinstance(card.get("id"), str)),
            extensions=read.extensions,
        )

    @classmethod
    def from_models_list(cls, body: bytes) -> "CapabilityRecord | None":
        """Read the body of `models.list`; None when it carries no capability document.

        Raises:
            ProfileError: the body is no list, or its document is malformed.
        """
        try:
            listed = msgspec.json.decode(body, type=_ModelsList)
        except msgspec.DecodeError as exc:
            raise _malformed(str(exc)) from None
        if listed.nnrp is None or listed.nnrp.capabilities is None:
            return None
        record = cls.from_document(listed.nnrp.capabilities, adapter=listed.nnrp.adapter)
        return msgspec.structs.replace(record, models=listed.data)


class _Offered(msgspec.Struct):
    name: str
    streaming: bool
    non_streaming: bool
    tool_calls: bool
    cancellation: bool = False  # what a document does not claim, it does not have


class _Document(msgspec.Struct):
    profile: str
    schema_version: str
    compatibility_levels: tuple[int, ...]
    operations: tuple[_Offered, ...]
    models: tuple[dict[str, Any], ...] = ()
    extensions: tuple[Extension, ...] = ()


class _Carried(msgspec.Struct):
    capabilities: dict[str, Any] | None = None
    adapter: str = ""


class _ModelsList(msgspec.Struct):
    data: tuple[dict[str, Any], ...]
    nnrp: _Carried | None = None


def _malformed(why: str) -> ProfileError:
    return ProfileError(
        ErrorCode.ADAPTER_RUNTIME_ERROR, f"The worker's capability document is malformed: {why}."
    )

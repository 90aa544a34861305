"""Content parts of chat messages: text and media."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
)

from gateway.protocols.base import RequestModel

__all__ = ["AnyPart", "AudioUrlPart", "ImageUrlPart", "InputAudioPart", "TextPart", "VideoUrlPart"]

#: A URL of any scheme: http, data, file, s3. What may be fetched is the engine's policy.
Url = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9+.\-]*:\S")]
Uuid = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$")]


class TextPart(RequestModel):
    type: Literal["text"]
    text: str


class MediaUrl(RequestModel):
    """Where a medium is. The nested `uuid` is the older place of the cache key."""

    url: Url
    detail: Literal["auto", "low", "high"] | None = None
    uuid: Uuid | None = None


def _empty_is_absent(value: Any) -> Any:
    """`{"url": ""}` is how some clients write "you have it cached, see `uuid`"."""
    return None if isinstance(value, dict) and value.get("url") == "" else value


#: A medium, or null where the part's `uuid` names one that the engine has cached.
OptionalMedia = Annotated[MediaUrl | None, BeforeValidator(_empty_is_absent)]


class _MediaPart(RequestModel):
    """A part whose media member is written out even when it is null."""

    type: str
    uuid: str | None = None

    @model_serializer(mode="wrap")
    def _keep_the_media_member(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        data.setdefault(self.type, None)
        return data


class ImageUrlPart(_MediaPart):
    type: Literal["image_url"]
    image_url: OptionalMedia = None


class VideoUrlPart(_MediaPart):
    type: Literal["video_url"]
    video_url: OptionalMedia = None


class AudioUrlPart(_MediaPart):
    type: Literal["audio_url"]
    audio_url: OptionalMedia = None


class InputAudio(RequestModel):
    data: str
    format: str


class InputAudioPart(RequestModel):
    type: Literal["input_audio"]
    input_audio: InputAudio


class OtherPart(RequestModel):
    """A part that only the engine knows, such as vLLM's `image_embeds`."""

    type: str


_KNOWN = frozenset({"text", "image_url", "video_url", "audio_url", "input_audio"})


def _part_tag(part: Any) -> str:
    # Serialising asks about models, validating about what the user sent.
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return kind if isinstance(kind, str) and kind in _KNOWN else "other"


AnyPart = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[ImageUrlPart, Tag("image_url")]
    | Annotated[VideoUrlPart, Tag("video_url")]
    | Annotated[AudioUrlPart, Tag("audio_url")]
    | Annotated[InputAudioPart, Tag("input_audio")]
    | Annotated[OtherPart, Tag("other")],
    Discriminator(_part_tag),
]

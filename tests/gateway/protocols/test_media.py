from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.protocols.media import AnyPart

PART: TypeAdapter[Any] = TypeAdapter(AnyPart)

UUID = "92b888ad-e64a-478f-b688-5091e16544e3"


def canonical(part: dict[str, Any]) -> dict[str, Any]:
    return PART.dump_python(PART.validate_python(part), exclude_none=True)


@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
class TestMediaByUrl:
    @pytest.mark.parametrize(
        "url",
        [
            "https://x.test/i.png",
            "http://x/i",
            "data:image/png;base64,aGk=",
            "file:///a",
            "s3://b/k",
        ],
    )
    def test_a_url_of_any_scheme_passes(self, kind: str, url: str) -> None:
        part = {"type": kind, kind: {"url": url}}
        assert canonical(part) == part

    @pytest.mark.parametrize("url", ["not a url", "x.test/i.png", "//x", ":", "1a:b", "data:"])
    def test_what_is_no_url_is_refused(self, kind: str, url: str) -> None:
        with pytest.raises(ValidationError, match="pattern"):
            canonical({"type": kind, kind: {"url": url}})

    @pytest.mark.parametrize("medium", [{"url": ""}, {"url": "", "detail": "low"}, None])
    def test_an_empty_url_is_an_absent_medium(self, kind: str, medium: Any) -> None:
        part = canonical({"type": kind, kind: medium, "uuid": "k1"})
        assert part == {"type": kind, kind: None, "uuid": "k1"}

    def test_an_absent_medium_is_written_as_null(self, kind: str) -> None:
        assert canonical({"type": kind}) == {"type": kind, kind: None}

    @pytest.mark.parametrize("medium", ["https://x.test/i.png", 3, ["https://x"], True])
    def test_the_medium_is_an_object(self, kind: str, medium: Any) -> None:
        with pytest.raises(ValidationError, match="valid dictionary"):
            canonical({"type": kind, kind: medium})

    def test_the_nested_uuid_must_be_one(self, kind: str) -> None:
        part = {"type": kind, kind: {"url": "https://x.test/i", "uuid": UUID}}
        assert canonical(part) == part
        with pytest.raises(ValidationError, match="uuid"):
            canonical({"type": kind, kind: {"url": "https://x.test/i", "uuid": "k1"}})

    def test_the_uuid_of_the_part_is_opaque(self, kind: str) -> None:
        assert canonical({"type": kind, "uuid": "any text"})["uuid"] == "any text"


def test_a_big_image_is_not_copied() -> None:
    url = "data:image/png;base64," + "A" * 1_000_000
    part = PART.validate_python({"type": "image_url", "image_url": {"url": url}})
    assert part.image_url.url is url


def test_text_and_audio_parts() -> None:
    for part in (
        {"type": "text", "text": "hi"},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    ):
        assert canonical(part) == part


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text"},
        {"type": "text", "text": 1},
        {"type": "input_audio"},
        {"type": "input_audio", "input_audio": {"data": "aGk="}},
        {"text": "no type"},
        {"type": 3},
        {"type": ["text"]},
        "text",
        None,
    ],
)
def test_malformed_parts_are_refused(part: Any) -> None:
    with pytest.raises(ValidationError):
        canonical(part)


def test_parts_that_only_an_engine_knows_pass() -> None:
    assert canonical({"type": "image_embeds", "image_embeds": "AAAA"}) == {"type": "image_embeds"}

from nnrp_backend.profile import operations


def test_names_are_those_of_the_profile() -> None:
    # Profile sections 1 and 5.
    assert operations.PROFILE == "openai-compatible"
    assert operations.SCHEMA_VERSION == "openai-compatible/1"
    assert operations.LEVEL_OF == {
        "chat.completions.create": 1,
        "responses.create": 2,
        "models.list": 3,
        "embeddings.create": 3,
    }

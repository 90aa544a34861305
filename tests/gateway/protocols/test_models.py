from openai.types import Model as OpenAiModel

from gateway.protocols.models import Model, ModelList


def test_a_card_is_what_the_openai_client_reads() -> None:
    card = Model(id="org/m", created=1, owned_by="vllm").model_dump()
    assert OpenAiModel.model_validate(card).to_dict() == {
        "id": "org/m",
        "object": "model",
        "created": 1,
        "owned_by": "vllm",
    }


def test_what_only_the_engine_knows_is_kept() -> None:
    card = Model.model_validate({"id": "m", "max_model_len": 8192, "root": "/m"})
    assert card.model_dump()["max_model_len"] == 8192


def test_the_list() -> None:
    assert ModelList(data=[]).model_dump() == {"object": "list", "data": []}

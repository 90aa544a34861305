import pytest

from nnrp_backend.adapter.sim.logprobs import token_logprobs


def test_each_token_has_an_entry_with_its_bytes() -> None:
    made = token_logprobs(("a", " ü"), 0)
    assert made["refusal"] is None
    assert [entry["token"] for entry in made["content"]] == ["a", " ü"]
    assert bytes(made["content"][1]["bytes"]).decode() == " ü"
    assert [entry["top_logprobs"] for entry in made["content"]] == [[], []]


@pytest.mark.parametrize("top", [1, 5, 20])
def test_the_token_itself_is_the_likeliest(top: int) -> None:
    (entry,) = token_logprobs(("a",), top)["content"]
    alternatives = entry["top_logprobs"]
    assert len(alternatives) == top
    assert (alternatives[0]["token"], alternatives[0]["logprob"]) == ("a", entry["logprob"])
    values = [alternative["logprob"] for alternative in alternatives]
    assert values == sorted(values, reverse=True)
    assert len({alternative["token"] for alternative in alternatives}) == top


def test_log_probabilities_are_not_positive_and_always_the_same() -> None:
    tokens = tuple(f"tok{number}" for number in range(100))
    made = token_logprobs(tokens, 0)
    assert all(-1 < entry["logprob"] <= 0 for entry in made["content"])
    assert made == token_logprobs(tokens, 0)

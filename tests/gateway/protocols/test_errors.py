from gateway.protocols.errors import InvalidRequest


def test_it_says_what_where_and_which_kind() -> None:
    error = InvalidRequest("expected a string", code="invalid_type", param="messages[0].content")
    assert str(error) == error.message == "expected a string"
    assert (error.code, error.param) == ("invalid_type", "messages[0].content")


def test_the_whole_body_has_no_param() -> None:
    assert InvalidRequest("no JSON", code="json_invalid").param is None

"""Heads that offer another protocol."""

from gateway.http.upgrades import head_without_upgrade

SETTINGS = (b"http2-settings", b"AAEAAEAA")


def test_nothing_but_the_offer_is_left_out() -> None:
    headers = [
        (b"host", b"test"),
        (b"connection", b"Upgrade, keep-alive ,HTTP2-Settings"),
        SETTINGS,
        (b"upgrade", b"h2c"),
        (b"content-length", b"7"),
    ]

    head = head_without_upgrade(b"POST", b"/v1?a=b", "1.1", headers)

    assert head == (
        b"POST /v1?a=b HTTP/1.1\r\nhost: test\r\nconnection: keep-alive\r\n"
        b"content-length: 7\r\n\r\n"
    )


def test_a_connection_header_that_said_nothing_else_is_left_out() -> None:
    headers = [(b"connection", b"Upgrade, HTTP2-Settings"), (b"upgrade", b"h2c"), SETTINGS]

    assert head_without_upgrade(b"GET", b"/", "1.1", headers) == b"GET / HTTP/1.1\r\n\r\n"

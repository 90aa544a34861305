import pytest

from nnrp_backend.transport.endpoint import Endpoint, EndpointError, Scheme


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://127.0.0.1:4600", Endpoint(Scheme.TCP, "127.0.0.1", 4600)),
        ("tcp://localhost:0", Endpoint(Scheme.TCP, "localhost", 0)),
        ("tcp://[::1]:4600", Endpoint(Scheme.TCP, "::1", 4600)),
        ("tcp://host:1/", Endpoint(Scheme.TCP, "host", 1)),
        ("tls://worker.example:443", Endpoint(Scheme.TLS, "worker.example", 443)),
        ("unix:///run/nnrp/worker.sock", Endpoint(Scheme.UNIX, path="/run/nnrp/worker.sock")),
        ("nnrp://worker", Endpoint(Scheme.TCP, "worker", 4510)),
        ("nnrp://worker:9", Endpoint(Scheme.TCP, "worker", 9)),
        ("nnrps://worker", Endpoint(Scheme.TLS, "worker", 4510)),
        ("NNRPS://Worker", Endpoint(Scheme.TLS, "worker", 4510)),
    ],
)
def test_parse(text, expected):
    assert Endpoint.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unknown scheme"),
        ("worker:4510", "unknown scheme"),
        ("http://worker:80", "unknown scheme"),
        ("tcp://worker", "no port"),
        ("tls://worker", "no port"),
        ("tcp://:80", "no host"),
        ("nnrp://", "no host"),
        ("tcp://worker:65536", "range"),
        ("tcp://worker:http", "Port could not"),
        ("tcp://worker:80/path", "takes no path"),
        ("tcp://user@worker:80", "only a host and port"),
        ("tcp://worker:80?x=1", "only a host and port"),
        ("unix://relative.sock", "must be absolute"),
        ("unix://", "no path"),
        ("unix:///", "no path"),
        ("tcp://[::1:80", "IPv6"),
    ],
)
def test_parse_refuses(text, reason):
    with pytest.raises(EndpointError, match=reason) as caught:
        Endpoint.parse(text)
    assert caught.value.text == text
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["tcp://127.0.0.1:4600", "tcp://[::1]:4600", "tls://worker:443", "unix:///run/worker.sock"],
)
def test_str_is_what_parse_reads(text):
    assert str(Endpoint.parse(text)) == text


def test_str_of_an_alias_names_the_transport():
    assert str(Endpoint.parse("nnrps://worker")) == "tls://worker:4510"

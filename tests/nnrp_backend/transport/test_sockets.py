import asyncio
import errno
import os
import socket
import ssl

import pytest

from nnrp_backend.transport.endpoint import Endpoint, Scheme
from nnrp_backend.transport.sockets import dial, listen, tune
from tests.support.certs import make_certificates
from tests.support.waiting import until


class Echo(asyncio.Protocol):
    """Send back what arrives; remember the peer certificate."""

    def __init__(self):
        self.received = b""
        self.lost = False

    def connection_made(self, transport):
        self.transport = transport
        tune(transport)

    def data_received(self, data):
        self.received += data

    def connection_lost(self, error):
        self.lost = True


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certs"))


@pytest.fixture
async def serve():
    """Start a listener and return it with the list of protocols it makes."""
    opened = []

    async def start(url, **options):
        accepted = []

        def make():
            accepted.append(Echo())
            return accepted[-1]

        listener = await listen(Endpoint.parse(url), make, **options)
        opened.append((listener, accepted))
        return listener, accepted

    yield start
    for listener, accepted in opened:
        listener.close()
        for protocol in accepted:
            if hasattr(protocol, "transport"):
                protocol.transport.abort()
    await asyncio.sleep(0)


def option(protocol, level, name):
    return protocol.transport.get_extra_info("socket").getsockopt(level, name)


async def exchange(client, accepted):
    client.transport.write(b"hello")
    await until(lambda: accepted and accepted[0].received == b"hello")
    client.transport.close()
    await until(lambda: accepted[0].lost)


async def test_tcp_on_a_free_port(serve):
    listener, accepted = await serve("tcp://127.0.0.1:0")
    assert listener.endpoint.port != 0
    assert repr(listener) == f"<Listener tcp://127.0.0.1:{listener.endpoint.port}>"
    await exchange(await dial(listener.endpoint, Echo), accepted)


async def test_tcp_options_are_set_on_both_ends(serve):
    listener, accepted = await serve("tcp://127.0.0.1:0")
    client = await dial(listener.endpoint, Echo)
    await until(lambda: accepted)
    for end in (client, accepted[0]):
        assert option(end, socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert option(end, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option(end, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert option(end, socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
        assert option(end, socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert option(end, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    client.transport.abort()


async def test_tcp_with_nobody_listening():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await dial(Endpoint(Scheme.TCP, "127.0.0.1", port), Echo)


async def test_unix_socket_comes_and_goes(serve, tmp_path):
    path = tmp_path / "worker.sock"
    listener, accepted = await serve(f"unix://{path}")
    await exchange(await dial(listener.endpoint, Echo), accepted)
    listener.close()
    assert not path.exists()


async def test_a_leftover_unix_socket_is_replaced(serve, tmp_path):
    path = tmp_path / "worker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener, accepted = await serve(f"unix://{path}")
    await exchange(await dial(listener.endpoint, Echo), accepted)


async def test_a_live_unix_socket_is_not_taken_over(serve, tmp_path):
    listener, accepted = await serve(f"unix://{tmp_path}/worker.sock")
    with pytest.raises(OSError, match="listens") as caught:
        await listen(listener.endpoint, Echo)
    assert caught.value.errno == errno.EADDRINUSE
    await until(lambda: accepted and accepted[-1].lost)  # the look whether it lives
    accepted.clear()
    await exchange(await dial(listener.endpoint, Echo), accepted)


async def test_close_leaves_another_listeners_socket_alone(serve, tmp_path):
    path = tmp_path / "worker.sock"
    listener, _ = await serve(f"unix://{path}")
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        listener.close()
        assert path.exists()


async def test_a_file_that_is_no_socket_is_not_removed(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(OSError, match=r"in use|not a socket|Address"):
        await listen(Endpoint(Scheme.UNIX, path=str(path)), Echo)
    assert path.read_text() == "precious"


async def test_tls(serve, certificates):
    listener, accepted = await serve("tls://127.0.0.1:0", ssl=certificates.server_context())
    client = await dial(listener.endpoint, Echo, ssl=certificates.client_context())
    assert client.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert option(client, socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    await exchange(client, accepted)


async def test_tls_refuses_an_unknown_authority(serve, certificates):
    listener, _ = await serve("tls://127.0.0.1:0", ssl=certificates.server_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        await dial(listener.endpoint, Echo, ssl=ssl.create_default_context())


async def test_tls_with_a_client_certificate(serve, certificates):
    listener, accepted = await serve(
        "tls://127.0.0.1:0", ssl=certificates.server_context(require_client=True)
    )
    client = await dial(
        listener.endpoint, Echo, ssl=certificates.client_context(with_certificate=True)
    )
    await exchange(client, accepted)
    # TLS 1.3 reports a missing certificate after the client's handshake is done.
    naked = await dial(listener.endpoint, Echo, ssl=certificates.client_context())
    await until(lambda: naked.lost)


async def test_a_silent_peer_in_a_tls_handshake_holds_up_nobody(serve, certificates):
    listener, accepted = await serve(
        "tls://127.0.0.1:0", ssl=certificates.server_context(), handshake_timeout=0.6
    )
    silent = await dial(listener.endpoint._replace(scheme=Scheme.TCP), Echo)
    client = await dial(listener.endpoint, Echo, ssl=certificates.client_context())
    await until(lambda: any(hasattr(p, "transport") for p in accepted))
    await until(lambda: silent.lost)
    client.transport.abort()


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "unix:///tmp/never-made.sock"])
async def test_a_context_without_tls_is_refused(url, certificates):
    endpoint = Endpoint.parse(url)
    with pytest.raises(ValueError, match="tls://"):
        await listen(endpoint, Echo, ssl=certificates.server_context())
    with pytest.raises(ValueError, match="tls://"):
        await dial(endpoint, Echo, ssl=certificates.client_context())


async def test_a_tls_listener_needs_a_context():
    with pytest.raises(ValueError, match="certificate"):
        await listen(Endpoint.parse("tls://127.0.0.1:0"), Echo)

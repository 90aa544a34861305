import ssl

import pytest

from nnrp_backend.transport.tls import TlsFilesError, client_context, server_context
from tests.support.certs import make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def nonsense(tmp_path):
    path = tmp_path / "nonsense.pem"
    path.write_text("not a certificate")
    return path


def handshake(server, client):
    """Let two contexts shake hands in memory; returns the subject that the server saw."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(incoming, outgoing, server_hostname="localhost"),
        server.wrap_bio(outgoing, incoming, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert ends[0].version() == "TLSv1.3"
    certificate = ends[1].getpeercert()
    return dict(pair for (pair,) in certificate["subject"]) if certificate else None


def test_ends_that_trust_each_other(certificates):
    server = server_context(*certificates.server_pair)
    client = client_context(ca=certificates.authority)
    assert handshake(server, client) is None


def test_a_server_may_want_to_know_its_clients(certificates):
    server = server_context(*certificates.server_pair, client_ca=certificates.authority)
    cert, key = certificates.client_pair
    known = client_context(ca=certificates.authority, cert=cert, key=key)
    assert handshake(server, known) == {"commonName": "client"}
    with pytest.raises(ssl.SSLError, match="did not return a certificate"):
        handshake(server, client_context(ca=certificates.authority))


def test_a_client_trusts_the_systems_authorities_by_default(certificates):
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(*certificates.server_pair), client_context())


def test_one_file_may_hold_certificate_and_key(certificates, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in certificates.server_pair))
    assert handshake(server_context(both), client_context(ca=certificates.authority)) is None


def test_files_that_are_none(certificates, nonsense, tmp_path):
    cert, key = certificates.server_pair
    missing = tmp_path / "missing.pem"
    for make, files in (
        (lambda: client_context(ca=nonsense), (nonsense,)),
        (lambda: client_context(ca=missing), (missing,)),
        (lambda: client_context(cert=nonsense), (nonsense,)),
        (lambda: client_context(cert=cert, key=missing), (cert, missing)),
        (lambda: server_context(nonsense), (nonsense,)),
        (lambda: server_context(cert), (cert,)),
        (lambda: server_context(cert, certificates.client_pair[1]),
         (cert, certificates.client_pair[1])),
        (lambda: server_context(cert, key, client_ca=nonsense), (nonsense,)),
    ):  # fmt: skip
        with pytest.raises(TlsFilesError) as caught:
            make()
        assert caught.value.files == files
        assert str(files[0]) in str(caught.value)
        assert caught.value.reason


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(TlsFilesError, match=r"none\.pem: No such file or directory"):
        client_context(ca=tmp_path / "none.pem")


def test_a_key_without_its_certificate(certificates):
    with pytest.raises(TlsFilesError, match="without its certificate"):
        client_context(key=certificates.client_pair[1])

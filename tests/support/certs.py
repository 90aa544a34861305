"""Certificates for TLS tests: one authority, a server for localhost, a client."""

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Certificates(NamedTuple):
    """PEM files. `*_pair` is a certificate chain and its key."""

    authority: Path
    server_pair: tuple[Path, Path]
    client_pair: tuple[Path, Path]

    def server_context(self, *, require_client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.server_pair)
        if require_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority)
        return context

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        if with_certificate:
            context.load_cert_chain(*self.client_pair)
        return context


def make_certificates(folder: Path) -> Certificates:
    """Write a fresh set into `folder`; valid for a day."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("test authority", authority_key, None, None)
    path = folder / "authority.pem"
    path.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    pairs = []
    for name in ("localhost", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, authority, authority_key)
        pair = folder / f"{name}.pem", folder / f"{name}.key"
        pair[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pairs.append(pair)
    return Certificates(path, pairs[0], pairs[1])


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey | None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer_key or key).public_key()),
            critical=False,
        )
    )
    if issuer is None:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    else:
        names: list[x509.GeneralName] = [
            x509.DNSName(name),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key or key, hashes.SHA256())

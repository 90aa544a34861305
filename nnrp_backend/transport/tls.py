"""TLS contexts from the files that an operator names."""

from __future__ import annotations

import ssl
from os import PathLike

__all__ = ["TlsFilesError", "client_context", "server_context"]

File = str | PathLike[str]


class TlsFilesError(OSError):
    """Raise for files that make no TLS context; `.files`, `.reason`."""

    def __init__(self, files: tuple[File, ...], reason: str) -> None:
        self.files = files
        self.reason = reason
        super().__init__(f"{' with '.join(map(str, files))}: {reason}")


def client_context(
    *, ca: File | None = None, cert: File | None = None, key: File | None = None
) -> ssl.SSLContext:
    """Make the context of a connecting end.

    Args:
        ca: authorities to trust instead of the system's.
        cert: our own certificate chain, for servers that want one.
        key: its private key, when it is not in the same file.

    Raises:
        TlsFilesError: a file cannot be read, or is not what it should be.
    """
    context = _trusting(ssl.Purpose.SERVER_AUTH, ca)
    _load_chain(context, cert, key)
    return context


def server_context(
    cert: File, key: File | None = None, *, client_ca: File | None = None
) -> ssl.SSLContext:
    """Make the context of a listening end.

    Args:
        cert: certificate chain.
        key: its private key, when it is not in the same file.
        client_ca: take only clients with a certificate of these authorities.

    Raises:
        TlsFilesError: a file cannot be read, or is not what it should be.
    """
    context = _trusting(ssl.Purpose.CLIENT_AUTH, client_ca)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _load_chain(context, cert, key)
    return context


def _trusting(purpose: ssl.Purpose, ca: File | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(purpose, cafile=ca)
    except OSError as error:
        raise TlsFilesError((ca or "the system's authorities",), _reason(error)) from error


def _load_chain(context: ssl.SSLContext, cert: File | None, key: File | None) -> None:
    if cert is None:
        if key is not None:
            raise TlsFilesError((key,), "a key is of no use without its certificate")
        return
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise TlsFilesError((cert,) if key is None else (cert, key), _reason(error)) from error


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"OpenSSL cannot use it ({error.reason or error.strerror})"
    return error.strerror or str(error)

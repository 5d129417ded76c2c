"""TLS contexts of connections to servers. Invariant: certificates and host names are always verified."""

from __future__ import annotations

import ssl
from pathlib import Path


class TlsFileError(ValueError):
    """A file cannot be used. `field`: the setting that names the file."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


def client_context(
    ca_file: Path | None = None, cert_file: Path | None = None, key_file: Path | None = None
) -> ssl.SSLContext:
    """A context that trusts the certificates in `ca_file` only (default: the system's), and presents the certificate in
    `cert_file`. `key_file`: default: in `cert_file`. Reads the files. Raises TlsFileError."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:  # an OSError, too
        raise TlsFileError("ca_file", "holds no certificates in PEM format") from None
    except OSError as failure:
        raise TlsFileError("ca_file", f"cannot be read: {failure.strerror}") from None
    context.set_alpn_protocols(["http/1.1"])
    if cert_file is not None:
        _present(context, cert_file, key_file)
    return context


def _present(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    for field, file in (("cert_file", cert_file), ("key_file", key_file)):
        try:
            with (file or cert_file).open("rb"):
                pass
        except OSError as failure:
            raise TlsFileError(field, f"cannot be read: {failure.strerror}") from None
    key_field = "cert_file" if key_file is None else "key_file"
    try:
        context.load_cert_chain(cert_file, key_file, password=_refuse)
    except _EncryptedError:
        raise TlsFileError(key_field, "the private key is encrypted: store it without a passphrase") from None
    except ssl.SSLError as failure:
        if failure.reason == "KEY_VALUES_MISMATCH":
            raise TlsFileError(key_field, "the private key does not belong to the certificate") from None
        raise TlsFileError(
            "cert_file", f"holds no certificate in PEM format, or {key_field} holds no private key"
        ) from None


class _EncryptedError(Exception):
    """OpenSSL would ask for the passphrase on the terminal."""


def _refuse() -> str:
    raise _EncryptedError

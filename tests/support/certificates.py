"""A certificate authority of a test, and the certificates that it issues."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_NAMES: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate for localhost and 127.0.0.1, or of a client, and its private key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority that is trusted only where a test configures it."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._signed(self._subject, self._key, ca=True, days=(-1, 1)))

    def issue(
        self, name: str, *, days: tuple[float, float] = (-1, 1), passphrase: bytes | None = None, address: bool = True
    ) -> Issued:
        """A certificate that is valid between these days from now. `address`: for 127.0.0.1, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = Issued(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        names = _NAMES if address else _NAMES[:1]
        made.cert.write_bytes(self._signed(subject, key, ca=False, days=days, names=names))
        hidden = (
            serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
        )
        made.key.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, hidden))
        return made

    def server_context(self, issued: Issued, *, clients: bool = False) -> ssl.SSLContext:
        """The TLS context of a server. `clients`: each must present a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.cert, issued.key)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.file)
        return context

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool, days: tuple[float, float],
        names: list[x509.GeneralName] = _NAMES,
    ) -> bytes:  # fmt: skip
        now, (begin, end) = datetime.now(UTC), days
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=begin))
            .not_valid_after(now + timedelta(days=end))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            # What Python 3.13 wants of each certificate, and of an authority (RFC 5280).
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_usage(ca=ca), critical=True)
            .sign(self._key, hashes.SHA256())
            .public_bytes(_PEM)
        )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip

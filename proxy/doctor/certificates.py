"""Checks the files of `providers.<name>.tls`. Invariant: no connection is made."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography.x509 import Certificate, load_pem_x509_certificates

from proxy.doctor.finding import Finding, error, ok, warning
from proxy.settings import ProviderSettings

# Enough time to apply for a new certificate.
SOON_S = 14 * 86_400.0


def check_files(title: str, provider: ProviderSettings, now: float) -> list[Finding]:
    """Check that the certificates are valid at `now` (Unix seconds). The files must be readable, and the key must
    belong to the certificate."""
    found = []
    if provider.tls.ca_file is not None:
        found.append(_validity(title, f"providers.{provider.name}.tls.ca_file", _latest(provider.tls.ca_file), now))
    if provider.tls.cert_file is not None:
        found.append(_validity(title, f"providers.{provider.name}.tls.cert_file", _first(provider.tls.cert_file), now))
    return found


def _read(file: Path) -> Sequence[Certificate]:
    return load_pem_x509_certificates(file.read_bytes())


def _first(file: Path) -> Certificate:
    """The first certificate, which is the client's; the others are intermediate certificates."""
    return _read(file)[0]


def _latest(file: Path) -> Certificate:
    """The certificate with the latest expiry, because a CA file may also contain older ones."""
    return max(_read(file), key=lambda one: one.not_valid_after_utc)


def _validity(title: str, field: str, certificate: Certificate, now: float) -> Finding:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end.timestamp() < now:
        return error(title, f"{field}: the certificate expired at {_day(end)}", "replace the file, and restart")
    if begin.timestamp() > now:
        return error(
            title,
            f"{field}: the certificate is valid only from {_day(begin)}",
            "check the file and this machine's clock",
        )
    if end.timestamp() < now + SOON_S:
        return warning(title, f"{field}: the certificate expires at {_day(end)}", "replace the file, and restart")
    return ok(title, f"{field}: the certificate is valid until {_day(end)}")


def _day(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")

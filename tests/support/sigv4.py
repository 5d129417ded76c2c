"""Verifies AWS's Signature Version 4 as a server does: from what arrived, and the secret that it knows.

By AWS's description, with nothing of its SDK; https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import quote, unquote

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)


def verified(request: bytes, secrets: Mapping[str, str], *, region: str, service: str) -> str:
    """The access key that signed it. Raises AssertionError."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    found = _AUTHORIZATION.fullmatch(headers["authorization"])
    assert found is not None, headers["authorization"]
    key, day, named_region, named_service, signed, signature = found.groups()
    assert (named_region, named_service) == (region, service)
    assert headers["x-amz-date"].startswith(day)
    names = signed.split(";")
    assert {"host", "x-amz-date"} <= set(names)
    digest = sha256(body).hexdigest()
    assert headers.get("x-amz-content-sha256", digest) == digest, "the body is another"
    path, _, query = target.partition("?")
    canonical = "\n".join((
        method, quote(path, safe="/~"), _canonical(query), *(f"{name}:{headers[name]}" for name in names), "", signed,
        digest,
    ))  # fmt: skip
    scope = f"{day}/{region}/{service}/aws4_request"
    to_sign = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, sha256(canonical.encode()).hexdigest()))
    secret = f"AWS4{secrets[key]}".encode()
    for part in (day, region, service, "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    assert hmac.new(secret, to_sign.encode(), "sha256").hexdigest() == signature, canonical
    return key


def _canonical(query: str) -> str:
    pairs = (part.partition("=")[::2] for part in query.split("&") if part)
    return "&".join(sorted("=".join(quote(unquote(one), safe="~") for one in pair) for pair in pairs))

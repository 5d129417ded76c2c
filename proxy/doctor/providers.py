"""Checks each provider from this machine.

Invariants: a check makes a few free requests, one if there is no fault; only the model of `CheckedDeployment.call`
costs tokens. The gateway's client makes the connection, so certificates and HTTP proxy are those of the gateway.
The files of `providers.<name>.tls` are checked without a connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cryptography.x509 import Certificate, load_pem_x509_certificates

from proxy.doctor.base_urls import Probe, candidates, endpoint_probe, first_probe, has_no_fixed_path, is_api
from proxy.doctor.clocks import clock_finding
from proxy.doctor.finding import CheckedDeployment, Finding, error, ok, warning
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.cloud.fetched import CredentialFailedError
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.tunnel import ProxyFailedError
from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects import DIALECTS, supports
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.stored_objects import OBJECT_APIS
from proxy.settings import ProviderSettings, SettingsError, route

# Enough time to apply for a new certificate.
SOON_S = 14 * 86_400.0


def check_files(title: str, provider: ProviderSettings, now: float) -> list[Finding]:
    """Check that the certificates are valid at `now` (Unix seconds). The files must be readable, and the key must
    belong to the certificate."""
    return [
        _validity(title, f"providers.{provider.name}.tls.{name}", pick(file.read_bytes()), now)
        for name, file, pick in (
            ("ca_file", provider.tls.ca_file, _latest),
            ("cert_file", provider.tls.cert_file, _first),
        )
        if file is not None
    ]


def _first(content: bytes) -> Certificate:
    """The first certificate, which is the client's; the others are intermediate certificates."""
    return load_pem_x509_certificates(content)[0]


def _latest(content: bytes) -> Certificate:
    """The certificate with the latest expiry, because a CA file may also contain older ones."""
    return max(load_pem_x509_certificates(content), key=lambda one: one.not_valid_after_utc)


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


CONNECT_S = 5.0
# For an answer from another address at a host that has just answered. A check has ten seconds.
CANDIDATE_S = 1.0
# For one token of a model that reasons first.
CALL_S = 60.0
_RESPONSE_BYTES_MAX = 1 << 20
# Newer OpenAI models accept only the second name, other models only the first.
_LIMITS = ("max_tokens", "max_completion_tokens")


def check(name: str, case: CheckedDeployment) -> list[Finding]:
    """Check that the provider's files are usable, its host resolves and connects, its certificate is trusted, it
    accepts the key, and its clock agrees."""
    provider = case.settings.providers[name]
    first, *others = _by_credential(provider)
    found = _check(f"provider {name}", first, case)
    return [*found, *(finding for other in others for finding in _check(f"provider {name}", other, case)[:1])]


def _by_credential(provider: ProviderSettings) -> list[ProviderSettings]:
    """The provider with each of its API keys."""
    if not provider.credentials:
        return [provider]
    return [
        replace(provider, api_key=credential.api_key, credentials=(credential,)) for credential in provider.credentials
    ]


_PROJECT = re.compile(r"/v1(?:beta1)?/projects/[^/]+/locations/[^/]+")


def _check(title: str, provider: ProviderSettings, case: CheckedDeployment) -> list[Finding]:
    try:
        finding, answered = _reached(title, provider)
    except SettingsError as wrong:
        return [error(title, str(wrong), "correct the file: `tokenweir serve` does not start without it")]
    except (UpstreamFailedError, TimeoutError) as failure:
        return [error(title, *_reason(failure, provider)), *check_files(title, provider, case.now)]
    return [finding, *_place(title, provider), *check_files(title, provider, case.now), *_clock(title, answered)]


def _reached(title: str, provider: ProviderSettings) -> tuple[Finding, _Answered]:
    """The finding on key and base URL. Raises SettingsError, UpstreamFailedError, TimeoutError."""
    probe = first_probe(provider)
    answered = _ask(provider, probe)
    missing = ""
    if not has_no_fixed_path(provider) and _is_doubtful(probe, answered):
        endpoint = endpoint_probe(provider)
        at_endpoint = None if endpoint is None else _ask(provider, endpoint)
        if endpoint is None or at_endpoint is None or not is_api(endpoint, at_endpoint.status, at_endpoint.text):
            return _wrong_base_url(title, provider, probe, answered), answered
        if not is_api(probe, answered.status, answered.text):
            missing = f"{answered.status} for {probe.purpose}, "
        probe, answered = endpoint, at_endpoint
    return _key_finding(title, provider, probe, answered, missing), answered


def _is_doubtful(probe: Probe, answered: _Answered) -> bool:
    """True if the answer may come from another address than the API's."""
    if answered.status in (401, 403, 429) or answered.status >= 500:
        return False
    return bool(probe.instead_of) or not is_api(probe, answered.status, answered.text)


def _wrong_base_url(title: str, provider: ProviderSettings, probe: Probe, answered: _Answered) -> Finding:
    message = f"base_url {provider.base_url} is not the address of its API: {answered.status} for {probe.purpose}"
    for base_url in candidates(provider):
        if _answers(replace(provider, base_url=base_url)):
            return error(title, message, f"set base_url to {base_url}, which answers")
    return error(title, message, "set base_url to the URL up to `/chat/completions`, `/messages` or the like")


def _answers(provider: ProviderSettings) -> bool:
    """True if the API is at the provider's base URL."""
    probes = [probe for probe in (first_probe(provider), endpoint_probe(provider)) if probe is not None]
    for probe in probes:
        if probe.instead_of:
            continue
        try:
            answered = _ask(provider, probe, CANDIDATE_S)
        except (UpstreamFailedError, TimeoutError):
            return False
        if answered.status < 500 and is_api(probe, answered.status, answered.text):
            return True
    return False


def _key_finding(title: str, provider: ProviderSettings, probe: Probe, answered: _Answered, missing: str) -> Finding:
    """The finding on the key: accepted or not. `missing`: an endpoint that the provider lacks, for the message."""
    key = "".join(f" of credential {credential.name}" for credential in provider.credentials)
    key = key or ("" if provider.auth is None else " of its cloud")
    status = answered.status
    about_key = not probe.refusals or any(part in answered.text for part in probe.refusals)
    if status == 401 or (status == 403 and about_key):
        if provider.byok and provider.api_key is None:
            return ok(title, f"it is reachable, and requires a key ({status}): clients send their own")
        advice = "check its variable: the key may be truncated or revoked"
        if provider.auth is not None:
            advice = "check these credentials, and what their account may do"
        return error(title, f"it rejects the key{key} ({status})", advice)
    if status >= 500 or status == 429:
        return warning(
            title, f"it is reachable and returns {status}", "try again later; see the provider's status page"
        )
    way = "" if provider.proxy is None else f" through the proxy {provider.proxy.host}:{provider.proxy.port}"
    accepted = f", with the key{key}" if key else ""
    return ok(title, f"it is reachable{way}{accepted} ({missing}{status} for {probe.purpose})")


def _place(title: str, provider: ProviderSettings) -> list[Finding]:
    """Check that a base URL of Vertex AI names a project and a location."""
    if not any(name.partition(".")[0] == "vertex" for name in provider.dialects):
        return []
    if _PROJECT.fullmatch(urlsplit(provider.base_url).path):
        return []
    return [
        warning(
            title,
            "its base_url names no project and location",
            "end it with /v1/projects/PROJECT/locations/LOCATION, unless it is for express mode",
        )
    ]


def call(case: CheckedDeployment) -> list[Finding]:
    """Request one token of the model `case.call`. The provider bills it; the ledger does not record it."""
    requested = case.call or ""
    title = f"call {requested}"
    routed = route(case.settings.models, requested)
    if routed is None:
        return [error(title, "no configured model has this name", f"use one of: {_names(case)}")]
    model, forwarded = routed
    return [
        finding
        for target in model.providers
        for finding in _call(
            title, _by_credential(case.settings.providers[target.provider])[0], target.upstream_model or forwarded
        )
    ]


def _call(title: str, provider: ProviderSettings, upstream_model: str) -> list[Finding]:
    if not supports(provider.dialects, OPENAI_CHAT):
        return [
            warning(
                title, f"{provider.name} does not support {OPENAI_CHAT.name}", "test it with a client of its dialect"
            )
        ]
    try:
        status, body = _one_token(provider, upstream_model)
    except (UpstreamFailedError, TimeoutError) as failure:
        return [error(title, *_reason(failure, provider))]
    usage = body.get("usage") if isinstance(body, dict) else None
    if status != 200:
        message = f"{provider.name} returns {status}{_code(body)}"
        return [error(title, message, "check that this key may use this model")]
    if not isinstance(usage, dict):
        return [warning(title, "it answered without reporting usage", "nothing to do: its exchanges are estimated")]
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return [ok(title, f"it answered: {counts[0]} prompt and {counts[1]} completion tokens")]


def _one_token(provider: ProviderSettings, model: str) -> tuple[int, Any]:
    """The status and body of a request for one token, retried with the other name of the limit after a 400."""
    for limit in _LIMITS:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], limit: 1}
        answered = _request(provider, "POST", "/chat/completions", body, CONNECT_S + CALL_S)
        if answered.status != 400:
            break
    return answered.status, _json(answered.text)


def _key_field(provider: ProviderSettings, key: str) -> tuple[str, str]:
    """The header of the API key, as defined by the first dialect that the provider supports."""
    spoken = [dialect.key_header for dialect in DIALECTS if supports(provider.dialects, dialect)]
    spoken += [api.key_header for api in OBJECT_APIS if supports(provider.dialects, api)]
    header = provider.key_header or spoken[0]
    return header.value, f"Bearer {key}" if header is KeyHeader.AUTHORIZATION else key


class _Answered(NamedTuple):
    """A provider's answer to a probe."""

    status: int
    date: str
    sent_at: float
    """Unix seconds"""
    text: bytes
    """the body; for AWS, with the type of the error"""


def _ask(provider: ProviderSettings, probe: Probe, limit_s: float = 2 * CONNECT_S) -> _Answered:
    """Send a probe. Raises SettingsError, UpstreamFailedError, TimeoutError."""
    return _request(provider, probe.method, probe.path, probe.body, limit_s, probe.headers, probe.instead_of)


def _request(
    provider: ProviderSettings,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    limit_s: float,
    more: str = "",
    instead_of: str = "",
) -> _Answered:
    """Send a request. `more`, `instead_of`: see Probe. Raises SettingsError, UpstreamFailedError, TimeoutError."""
    parts = urlsplit(provider.base_url)
    content = b"" if body is None else json.dumps(body).encode()
    headers = {
        "Host": parts.netloc,
        "User-Agent": "tokenweir",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
    }
    if provider.api_key is not None:
        name, value = _key_field(provider, provider.api_key.reveal())
        headers[name] = value
    target = f"{parts.path.removesuffix(instead_of)}{path}"
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    wire = ("\r\n".join(lines) + f"\r\n{more}\r\n").encode("latin-1") + content
    return asyncio.run(_asked(provider, wire, limit_s))


async def _asked(provider: ProviderSettings, wire: bytes, limit_s: float) -> _Answered:
    patient = replace(provider, credentials=(), timeouts=replace(provider.timeouts, connect_s=CONNECT_S))
    client, before = UpstreamClient(), time.time()
    try:
        async with asyncio.timeout(limit_s):
            answer = await client.ask(Provider.of(patient, write_stall_s=limit_s), wire)
            body = await answer.read(_RESPONSE_BYTES_MAX) or b""
            kind, date = (answer.head.header(name) for name in ("x-amzn-errortype", "date"))
            return _Answered(answer.status, date, before, body + kind.encode("latin-1") if kind else body)
    finally:
        await client.close()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _reason(failure: Exception, provider: ProviderSettings) -> tuple[str, str]:
    """The message and the advice for a failed connection."""
    host = urlsplit(provider.base_url).hostname
    error = failure.__cause__ if isinstance(failure, UpstreamFailedError) else failure
    if isinstance(failure, CredentialFailedError):
        tool = "gcloud auth application-default print-access-token"
        if provider.auth is not None and provider.auth.aws is not None:
            tool = "aws sts get-caller-identity"
        return str(failure), f"check that `{tool}` finds them, as this user"
    if isinstance(failure, ProxyFailedError):
        return (
            f"{host} cannot be reached: {failure}",
            f"check providers.{provider.name}.proxy (default: HTTPS_PROXY), its credentials, and which hosts it allows",
        )
    if isinstance(error, socket.gaierror):
        return f"{host} has no address", "check base_url and this machine's DNS resolver"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {host} is not trusted: {error.verify_message}",
            f"check base_url, and this machine's CA certificates or providers.{provider.name}.tls.ca_file",
        )
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake with {host} failed: {error.reason}", "check the scheme and the port of base_url"
    if isinstance(error, TimeoutError):
        return f"{host} does not answer in time", "check the firewall and the provider's status page"
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        return f"{host} cannot be reached: {reason}", "check base_url and the firewall"
    return f"{host} does not answer in HTTP: {failure}", "check the scheme and the port of base_url"


def _clock(title: str, answered: _Answered) -> list[Finding]:
    try:
        remote = parsedate_to_datetime(answered.date).timestamp()
    except ValueError:
        return []
    return [clock_finding(title, "the provider's", remote, answered.sent_at, time.time(), resolution_s=1.0)]


def _code(body: Any) -> str:
    """The provider's error code; not its message, which may quote the request."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return f" ({str(code)[:64]})" if code else ""


def _names(case: CheckedDeployment) -> str:
    return ", ".join(case.settings.models)

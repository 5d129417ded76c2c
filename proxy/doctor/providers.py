"""The providers, from this machine. Law: a connection and one free question each; tokens are bought only where a model
was named. No proxy of the environment is used, as the gateway uses none."""

from __future__ import annotations

import json
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from proxy.doctor.clocks import judged
from proxy.doctor.finding import Case, Finding, error, ok, warning
from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects import DIALECTS, speaks
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.settings import ProviderSettings, route

CONNECT_S = 5.0
# One token of a model that thinks first.
CALL_S = 60.0
_ANSWER_BYTES_MAX = 1 << 20
# Newer models of OpenAI know only the second name, others only the first.
_LIMITS = ("max_tokens", "max_completion_tokens")


def look(name: str, case: Case) -> list[Finding]:
    """Resolved, connected, trusted; whether it knows our key, and what time it has."""
    provider = case.settings.providers[name]
    check = f"provider {name}"
    try:
        status, date, before = _asked(provider, "GET", "/models", None, CONNECT_S)[:3]
    except (OSError, HTTPException) as failed:
        return [error(check, *_why(failed, provider))]
    if status in (401, 403):
        found = [
            error(check, f"it does not accept the key ({status})", "see its variable: is the key whole, and alive?")
        ]
    elif status >= 500 or status == 429:
        found = [warning(check, f"it is reached, and says {status}", "try again later; see the provider's status page")]
    else:
        found = [ok(check, f"it is reached ({status} for its list of models)")]
    return [*found, *_clock(check, date, before)]


def call(case: Case) -> list[Finding]:
    """One token of the model that was named. It is on the provider's bill, and not in the ledger."""
    asked = case.call or ""
    check = f"call {asked}"
    found = route(case.settings.models, asked)
    if found is None:
        return [error(check, "no model of the configuration answers to this name", f"there are: {_names(case)}")]
    model, passed = found
    return [
        one
        for target in model.providers
        for one in _called(check, case.settings.providers[target.provider], target.upstream_model or passed)
    ]


def _called(check: str, provider: ProviderSettings, upstream_model: str) -> list[Finding]:
    if not speaks(provider.dialects, OPENAI_CHAT):
        return [warning(check, f"{provider.name} does not speak {OPENAI_CHAT.name}", "try it with a client of its own")]
    try:
        status, answer = _one_token(provider, upstream_model)
    except (OSError, HTTPException) as failed:
        return [error(check, *_why(failed, provider))]
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if status != 200:
        return [
            error(check, f"{provider.name} says {status}{_code(answer)}", "see whether this key may use this model")
        ]
    if not isinstance(usage, dict):
        return [warning(check, "it answered, and did not say what it used", "its exchanges will be estimated")]
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return [ok(check, f"it answered: {counts[0]} prompt and {counts[1]} completion tokens")]


def _one_token(provider: ProviderSettings, model: str) -> tuple[int, Any]:
    """What it says to a request for one token, under either name of the limit."""
    for limit in _LIMITS:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], limit: 1}
        status, _, _, answer = _asked(provider, "POST", "/chat/completions", body, CALL_S)
        if status != 400:
            break
    return status, answer


def _key_field(provider: ProviderSettings, key: str) -> tuple[str, str]:
    """The header that takes its key, as the first of its languages has it."""
    spoken = next(dialect for dialect in DIALECTS if speaks(provider.dialects, dialect))
    header = provider.key_header or spoken.key_header
    return header.value, f"Bearer {key}" if header is KeyHeader.AUTHORIZATION else key


def _asked(
    provider: ProviderSettings, method: str, path: str, body: dict[str, Any] | None, limit_s: float
) -> tuple[int, str | None, float, Any]:
    """Status, Date header, when it was asked, and the JSON that came back, if it is any."""
    parts = urlsplit(provider.base_url)
    connection: HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=CONNECT_S, context=context)
    else:
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_S)
    headers = {"User-Agent": "tokenweir", "Accept": "application/json", "Content-Type": "application/json"}
    if provider.api_key is not None:
        name, value = _key_field(provider, provider.api_key.reveal())
        headers[name] = value
    try:
        connection.connect()
        connection.sock.settimeout(limit_s)
        before = time.time()
        connection.request(method, f"{parts.path}{path}", None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.headers.get("Date"), before, _json(response.read(_ANSWER_BYTES_MAX))
    finally:
        connection.close()


def _json(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _why(failed: Exception, provider: ProviderSettings) -> tuple[str, str]:
    """What is wrong, and what to do."""
    host = urlsplit(provider.base_url).hostname
    if isinstance(failed, socket.gaierror):
        return f"no address is known for {host}", "see base_url, and this machine's resolver"
    if isinstance(failed, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {host} is not trusted: {failed.verify_message}",
            "see base_url, or this machine's CAs",
        )
    if isinstance(failed, ssl.SSLError):
        return f"{host} does not speak TLS as we do: {failed.reason}", "see the scheme and the port of base_url"
    if isinstance(failed, TimeoutError):
        return f"{host} does not answer in time", "see the firewall, and whether the provider is well"
    if isinstance(failed, HTTPException):
        return f"{host} does not speak HTTP: {type(failed).__name__}", "see the scheme and the port of base_url"
    words = failed.strerror if isinstance(failed, OSError) else None
    return f"{host} cannot be reached: {words or type(failed).__name__}", "see base_url, and the firewall"


def _clock(check: str, date: str | None, before: float) -> list[Finding]:
    try:
        theirs = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return []
    return [judged(check, "the provider's", theirs, before, time.time(), resolution_s=1.0)]


def _code(answer: Any) -> str:
    """The error's code: a word of the provider's, not its message, which may quote what was sent."""
    found = answer.get("error") if isinstance(answer, dict) else None
    code = found.get("code") or found.get("type") if isinstance(found, dict) else None
    return f" ({str(code)[:64]})" if code else ""


def _names(case: Case) -> str:
    return ", ".join(case.settings.models)

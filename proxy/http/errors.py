"""The errors that clients receive, in the format of their SDK.

Invariant: a message is a text of this file or names a field of the client's request; it never quotes a secret, a
prompt, an upstream address or an exception's text.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape
from proxy.metering.wire.framing import SSE, Framing

JSON_TYPE = "application/json"
# The count of failed keys of an address restarts within a minute.
GUESS_AGAIN_S = 60


# SDKs retry a 409 and a 429 unless this header forbids it.
NO_RETRY = ("x-should-retry", "false")


@dataclass(slots=True)
class AboutRequest:
    """The facts about a refused request to a model."""

    key_id: str | None = None
    """None: the key is unknown"""
    key_alias: str | None = None
    endpoint: str | None = None
    model: str | None = None


class ApiError(Exception):
    """A refusal for the client: HTTP status, and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`headers`: additional response headers."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.headers = headers
        self.shape: ErrorShape | None = None
        """the format of this client; None: that of the path"""
        self.about: AboutRequest | None = None
        """set if the proxy refuses a request to a model, which then leaves no entry; None: any other error"""
        self.limit: str | None = None
        """the level whose limit is reached, as in the message; None: another reason"""

    def body(self, shape: ErrorShape = OPENAI_ERRORS) -> bytes:
        """The JSON body, in the format of the client's dialect."""
        return msgspec.json.encode(shape.body(self))

    def event(self, shape: ErrorShape = OPENAI_ERRORS, framing: Framing = SSE) -> bytes:
        """The error as one event, for a stream that has already begun."""
        name = shape.event_names.get(self.status, shape.event_name)
        return framing.event(msgspec.json.encode(shape.event_body(self)), name)


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400; `param` names the field."""
    return ApiError(400, message, param=param, code=code)


def malformed() -> ApiError:
    """400: the request is not HTTP, or ambiguous. The message does not quote it."""
    return ApiError(400, "The request is not well-formed HTTP/1.1.", code="malformed_request")


def internal() -> ApiError:
    """500: a bug of the proxy."""
    return ApiError(500, "The proxy failed.", kind="server_error", code="internal_error")


def unknown_route(method: str, path: str) -> ApiError:
    """404: only endpoints that can be metered are served."""
    return ApiError(404, f"Unknown request URL: {method} {_shown(path)}", code="unknown_url")


def method_not_allowed(method: str, allowed: tuple[str, ...]) -> ApiError:
    """405: the path is served, by other methods."""
    message = f"The method {method} is not allowed for this URL."
    headers = (("Allow", ", ".join(allowed)),)
    return ApiError(405, message, code="method_not_allowed", headers=headers)


def no_upgrade() -> ApiError:
    """426: this path supports neither WebSocket nor other protocols. Clients that can use HTTP do so at once."""
    message = "Only HTTP/1.1 is served here: the Upgrade header is refused."
    headers = (("Upgrade", "HTTP/1.1"), ("Connection", "upgrade, close"))
    return ApiError(426, message, param="Upgrade", code="upgrade_not_supported", headers=headers)


def upgrade_needed() -> ApiError:
    """426: this path supports WebSocket only."""
    message = "This URL is served as a WebSocket."
    headers = (("Upgrade", "websocket"), ("Connection", "upgrade, close"))
    return ApiError(426, message, param="Upgrade", code="upgrade_required", headers=headers)


def origin_not_allowed() -> ApiError:
    """403: the request comes from a page of another origin."""
    message = "This origin is not allowed: add it to `cors.origins` of the proxy."
    return ApiError(403, message, kind="permission_error", param="Origin", code="origin_not_allowed")


def unknown_model(model: str) -> ApiError:
    """404: no such model is configured."""
    return ApiError(404, f"The model '{model}' does not exist.", param="model", code="model_not_found")


def unknown_response(response_id: str) -> ApiError:
    """404: no such response is stored, or another key made it."""
    return ApiError(
        404, f"Response with id '{_shown(response_id)}' not found.", param="response_id", code="response_not_found"
    )


def response_running(response_id: str) -> ApiError:
    """409: a response that is still generated cannot be deleted."""
    message = f"Response with id '{_shown(response_id)}' is still in progress: cancel it first."
    return ApiError(409, message, param="response_id", code="response_in_progress", headers=(NO_RETRY,))


def unknown_stream() -> ApiError:
    """404: the stream is not in memory (any more), or another key made it."""
    message = "No stream of this exchange is in memory: it is unknown or too old, or was dropped for newer ones."
    return ApiError(404, message, param="exchange_id", code="stream_not_found")


def stream_overwritten() -> ApiError:
    """410: the next events were dropped from memory."""
    message = "The events after this one are no longer in memory: only the last part of a long stream is kept."
    return ApiError(410, message, param="after", code="stream_overwritten", headers=(NO_RETRY,))


def stream_incomplete() -> ApiError:
    """502, as an event in a resumed stream: the rest was not read from the provider."""
    message = "The rest of this stream was not read from the provider."
    return ApiError(502, message, kind="server_error", code="stream_incomplete")


def unknown_previous_response(response_id: str) -> ApiError:
    """400, as OpenAI's: no such response is stored, or another key made it."""
    message = f"Previous response with id '{_shown(response_id)}' not found."
    return bad_request(message, param="previous_response_id", code="previous_response_not_found")


def responses_unknown() -> ApiError:
    """503: the owner of a response cannot be looked up."""
    message = "The owner of this response cannot be looked up now. Please try again later."
    return overloaded(message, code="responses_unknown")


def unknown_object(kind: str, object_id: str) -> ApiError:
    """404: no such file or batch, or another key made it. `kind`: `file`, `batch`."""
    message = f"No such {kind}: '{_shown(object_id)}'."
    return ApiError(404, message, param="id", code=f"{kind}_not_found")


def unknown_file_named(file_id: str, param: str = "file_id") -> ApiError:
    """400: a request names a file that does not exist, or that another key made."""
    message = f"{param}: no file '{_shown(file_id)}' was uploaded with this key, or with another key of its project"
    return bad_request(message, param=param, code="file_not_found")


def objects_unknown() -> ApiError:
    """503: the database of files and batches cannot be read or written."""
    message = "Files and batches cannot be looked up right now. Please try again later."
    return overloaded(message, code="objects_unknown")


def results_unrecorded() -> ApiError:
    """503: the results of a batch are relayed only when the ledger has their entries."""
    message = "The results of this batch are being recorded. Please try again."
    return overloaded(message, code="results_unrecorded")


def results_lost() -> ApiError:
    """502: the results of a batch could not be recorded, and are not relayed."""
    message = "The results of this batch could not be read from the provider."
    return ApiError(502, message, kind="server_error", code="results_lost")


def _shown(text: str) -> str:
    return text if len(text) <= 80 and text.isascii() and text.isprintable() else "…"


def unsupported_dialect(model: str, endpoint: str) -> ApiError:
    """400: the model exists, but its provider does not support the request's dialect."""
    message = f"The model '{model}' is not served at {endpoint}: its provider does not support this API."
    return bad_request(message, param="model", code="endpoint_not_supported")


def nothing_asked() -> ApiError:
    """400: a message before the first request, which connects a provider."""
    message = "type: send `response.create` first: no provider is connected yet"
    return bad_request(message, param="type", code="nothing_asked")


def too_many_waiting(most: int) -> ApiError:
    """429: too many earlier requests have not been answered yet."""
    message = f"More than {most} requests of this connection wait for their answers."
    return ApiError(429, message, kind="requests", code="rate_limit_exceeded")


def model_missing(name: str) -> ApiError:
    """400: the query does not name the model of the session."""
    return bad_request(f"{name}: the URL must name one model in its query.", param=name, code="invalid_value")


def other_provider(model: str) -> ApiError:
    """400: the model is served, but not by this connection's provider."""
    message = f"The model '{model}' is served by another provider: open another connection for it."
    return bad_request(message, param="model", code="other_provider")


def model_not_allowed(model: str) -> ApiError:
    """403: the model exists, but not for this key."""
    message = f"This key may not use the model '{model}'."
    return ApiError(403, message, kind="permission_error", param="model", code="model_not_allowed")


def missing_dimension(name: str) -> ApiError:
    """400: a limit needs to know this dimension of the request."""
    header = f"x-tokenweir-{name.replace('_', '-')}"
    how = f"{header}: …" if not name.startswith("tag:") else f"x-tokenweir-tags: {name.removeprefix('tag:')}=…"
    message = (
        f"A limit of this key needs the {name} of each request: send it in the header '{how}', or as your API has it."
    )
    return bad_request(message, param=name, code="missing_dimension")


def cap_unknown(*, of_run: bool) -> ApiError:
    """503: the cap of the run or of the narrowed key cannot be stored now, so that it would not be kept."""
    what, code = ("this run", "run_cap_unknown") if of_run else ("this narrowed key", "key_cap_unknown")
    return overloaded(f"The cap of {what} cannot be stored right now. Please try again later.", code=code)


def stored_not_allowed() -> ApiError:
    """403: a narrowed key that may not use files and batches."""
    message = "This narrowed key may not use files and batches: it has the caveat 'stored=none'."
    return ApiError(403, message, kind="permission_error", code="stored_not_allowed")


def byok_not_allowed() -> ApiError:
    """403: this key uses the operator's credential, not the client's own."""
    message = "x-tokenweir-provider-key: not possible with this key, which does not use clients' own provider keys"
    return ApiError(403, message, kind="permission_error", param="x-tokenweir-provider-key", code="byok_not_allowed")


def byok_missing() -> ApiError:
    """401: the key's clients send their own provider credential, and this one did not."""
    message = (
        "This key is for clients with their own provider key: send your provider key as 'x-tokenweir-provider-key', or "
        "this key as 'x-tokenweir-key' and your provider key in the usual header."
    )
    return ApiError(401, message, kind="authentication_error", code="provider_key_missing")


def byok_unsupported(what: str, param: str | None = None) -> ApiError:
    """400: the client's own credential would be needed after the request, but is not kept."""
    message = f"{what} is not possible with your own provider key: it is kept only for the time of a request."
    return bad_request(message, param=param, code="byok_not_supported")


def byok_model(model: str) -> ApiError:
    """403: no provider of the model takes clients' own credentials."""
    message = f"The model '{model}' cannot be used with your own provider key: its provider is not set up for it."
    return ApiError(403, message, kind="permission_error", param="model", code="byok_model_not_allowed")


def model_unpriced(model: str) -> ApiError:
    """403: the model has no price, so that the key's budget cannot be enforced."""
    message = f"This key has a budget, and the model '{model}' has no price."
    return ApiError(403, message, kind="permission_error", param="model", code="model_unpriced")


def billed_by_time(model: str) -> ApiError:
    """403: the provider bills a session of this model by its duration, which is not metered."""
    message = f"The provider bills a session of the model '{model}' by its duration, which this proxy does not meter."
    return ApiError(403, message, kind="permission_error", param="model", code="model_billed_by_time")


_KEY_REFUSALS = {
    "missing": "You didn't provide an API key: send it as 'Authorization: Bearer tw-…'.",
    "in_url": "An API key in the URL is not accepted: send it in the header 'x-goog-api-key' or 'Authorization'.",
    "signed": "AWS signatures are not accepted: send the API key as a bearer token, in AWS_BEARER_TOKEN_BEDROCK.",
    "malformed": "Incorrect API key provided.",
    "unknown": "Incorrect API key provided.",
    "expired": "This API key has expired.",
    "caveat": "This narrowed API key has an invalid or unknown caveat, or two that contradict each other.",
    "replaced": "This API key has a new secret, and the one that you sent has expired.",
    "revoked": "This API key has been revoked.",
    "blocked": "This API key is blocked.",
    "jwt_invalid": "The token is not valid: its format, its signature or its times are wrong.",
    "jwt_elsewhere": "The issuer and the audience of the token are not configured here.",
    "jwt_expired": "The token has expired.",
    "jwt_early": "The token is not valid yet: compare the clocks of its issuer and of this proxy.",
    "jwt_claims": "A claim that is required here is missing from the token, or has another value.",
    "jwt_project": "No project is configured for the claims of this token.",
}

_KEY_CODES = {
    "expired": "expired_api_key",
    "replaced": "expired_api_key",
    "caveat": "invalid_caveat",
    "revoked": "revoked_api_key",
    "blocked": "blocked_api_key",
    "jwt_invalid": "invalid_token",
    "jwt_elsewhere": "invalid_token",
    "jwt_expired": "expired_token",
    "jwt_early": "invalid_token",
    "jwt_claims": "token_not_allowed",
    "jwt_project": "token_not_allowed",
}


def key_refused(reason: str) -> ApiError:
    """401 for an invalid key or token; 429 after too many unknown ones, 503 if keys cannot be looked up."""
    if reason == "unavailable":
        return keys_unavailable()
    if reason == "issuer_unavailable":
        return overloaded("The keys of the token's issuer cannot be fetched now.", code="issuer_unavailable")
    if reason == "too_many":
        message = "Too many requests with unknown API keys from this address."
        return ApiError(429, message, kind="requests", code="too_many_guesses", retry_after_s=GUESS_AGAIN_S)
    code = _KEY_CODES.get(reason, "invalid_api_key")
    return ApiError(401, _KEY_REFUSALS[reason], kind="authentication_error", code=code)


def overloaded(message: str, *, code: str) -> ApiError:
    """503: new requests are refused so that running exchanges can finish."""
    return ApiError(503, message, kind="server_error", code=code, retry_after_s=1)


def out_of_connections() -> ApiError:
    """503: this machine has no descriptors, ports or memory left for a connection to a provider."""
    return overloaded("The proxy cannot open more connections now.", code="out_of_connections")


def keys_unavailable() -> ApiError:
    """503: the key is not cached, and the key database cannot be read."""
    return overloaded("API keys cannot be looked up now.", code="keys_unavailable")


def no_provider(model: str, *, retry_after_s: int) -> ApiError:
    """503: all providers of the model are failing or rate-limited."""
    message = f"No provider of the model '{model}' is available now."
    return ApiError(503, message, kind="server_error", code="no_provider", retry_after_s=retry_after_s)


def upstream_failed() -> ApiError:
    """502: the provider could not be reached, broke off or sent an invalid response."""
    return ApiError(502, "The provider failed to answer.", kind="server_error", code="upstream_failed")


def upstream_proxy_failed() -> ApiError:
    """502: the HTTP proxy on the way to the provider opened no connection; the client cannot fix that."""
    message = "The provider cannot be reached through the proxy's own HTTP proxy."
    return ApiError(502, message, kind="server_error", code="upstream_proxy_failed")


def upstream_auth() -> ApiError:
    """502: the provider refused the proxy's credentials; the client cannot fix that."""
    message = "The provider refused the proxy's credentials."
    return ApiError(502, message, kind="server_error", code="upstream_auth")


def no_upstream_credentials() -> ApiError:
    """502: the proxy cannot get credentials for the provider; the client cannot fix that."""
    message = "The proxy has no credentials for this provider now."
    return ApiError(502, message, kind="server_error", code="upstream_auth")


def upstream_limited(*, retry_after_s: int) -> ApiError:
    """429: each of the proxy's credentials is at a limit. SDKs wait and retry."""
    message = "The proxy's credentials for this provider are at their limits now."
    return ApiError(429, message, kind="requests", code="upstream_limited", retry_after_s=retry_after_s)


def upstream_stalled() -> ApiError:
    """504: the provider was silent for longer than its timeout."""
    return ApiError(504, "The provider did not answer in time.", kind="server_error", code="upstream_stalled")


def budget_cut() -> ApiError:
    """402, as an event in the stream: the budget is used up."""
    message = "The budget of this key, its project or its organization was used up during the stream."
    return ApiError(402, message, kind="insufficient_quota", code="insufficient_quota")


def stopped_by_operator() -> ApiError:
    """403, as an event in the stream: an operator has stopped it."""
    message = "The operator of this proxy has stopped this stream."
    return ApiError(403, message, kind="permission_error", code="stopped_by_operator")


def shutting_down() -> ApiError:
    """503: this proxy is stopping."""
    return overloaded("The proxy is shutting down.", code="shutting_down")

"""Every refusal a client can meet, in the shape its SDK understands.

Law: a message is from this file or names a field of the client's own request; it never repeats a secret, a prompt,
an upstream address or an exception's text.
"""

from __future__ import annotations

import msgspec

from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape
from proxy.metering.wire.framing import SSE, Framing

JSON_TYPE = "application/json"
# Within a minute a guesser's count begins anew.
GUESS_AGAIN_S = 60


# SDKs try a 409 and a 429 again by themselves, unless they are told that it is in vain.
NO_RETRY = ("x-should-retry", "false")


class ApiError(Exception):
    """An expected "no" on its way to the client: HTTP status, and OpenAI's words for it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.headers: tuple[tuple[str, str], ...] = ()
        """further ones of the answer"""

    def body(self, shape: ErrorShape = OPENAI_ERRORS) -> bytes:
        """The JSON body, as the client's language has it."""
        return msgspec.json.encode(shape.body(self))

    def event(self, shape: ErrorShape = OPENAI_ERRORS, framing: Framing = SSE) -> bytes:
        """The same as one event, for a stream that has already begun."""
        return framing.event(msgspec.json.encode(shape.event_body(self)), shape.event_name)


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def malformed() -> ApiError:
    """400: what came is not HTTP, or could be read in two ways. Which part it was is not repeated."""
    return ApiError(400, "The request is not well-formed HTTP/1.1.", code="malformed_request")


def internal() -> ApiError:
    """500: our bug."""
    return ApiError(500, "The proxy failed.", kind="server_error", code="internal_error")


def unknown_route(method: str, path: str) -> ApiError:
    """404: what has no meter is not served."""
    shown = path if len(path) <= 80 and path.isascii() and path.isprintable() else "…"
    return ApiError(404, f"Unknown request URL: {method} {shown}", code="unknown_url")


def unknown_model(model: str) -> ApiError:
    """404: no such model is configured."""
    return ApiError(404, f"The model '{model}' does not exist.", param="model", code="model_not_found")


def other_language(model: str, endpoint: str) -> ApiError:
    """400: the model exists, but its provider does not speak the language that it was asked in."""
    message = f"The model '{model}' is not served at {endpoint}: its provider does not speak this API."
    return bad_request(message, param="model", code="endpoint_not_supported")


def model_not_allowed(model: str) -> ApiError:
    """403: the model exists, but not for this key."""
    message = f"This key may not use the model '{model}'."
    return ApiError(403, message, kind="permission_error", param="model", code="model_not_allowed")


def model_unpriced(model: str) -> ApiError:
    """403: nobody knows what it costs, and this key may not spend more than it has."""
    message = f"This key has a budget, and no price is known for the model '{model}'."
    return ApiError(403, message, kind="permission_error", param="model", code="model_unpriced")


_KEY_REFUSALS = {
    "missing": "You didn't provide an API key: send it as 'Authorization: Bearer tw-…'.",
    "in_url": "An API key does not belong in a URL: send it as a header, 'x-goog-api-key' or 'Authorization'.",
    "malformed": "Incorrect API key provided.",
    "unknown": "Incorrect API key provided.",
    "expired": "This API key has expired.",
    "revoked": "This API key has been revoked.",
    "blocked": "This API key is blocked.",
}


def key_refused(reason: str) -> ApiError:
    """401 for every reason a key is not accepted; 429 for guesses that come too fast, 503 if look-ups fail."""
    if reason == "unavailable":
        return keys_unavailable()
    if reason == "too_many":
        message = "Too many requests with keys that do not exist came from this address."
        return ApiError(429, message, kind="requests", code="too_many_guesses", retry_after_s=GUESS_AGAIN_S)
    code = "invalid_api_key" if reason in ("missing", "in_url", "malformed", "unknown") else f"{reason}_api_key"
    return ApiError(401, _KEY_REFUSALS[reason], kind="authentication_error", code=code)


def overloaded(message: str, *, code: str) -> ApiError:
    """503: new work is refused so that what runs can finish."""
    return ApiError(503, message, kind="server_error", code=code, retry_after_s=1)


def keys_unavailable() -> ApiError:
    """503: the key is not known, and the database that may have it cannot be read."""
    return overloaded("API keys cannot be looked up now.", code="keys_unavailable")


def no_provider(model: str, *, retry_after_s: int) -> ApiError:
    """503: all that could answer have failed lately, or want to be left alone."""
    message = f"No provider of the model '{model}' can be asked now."
    return ApiError(503, message, kind="server_error", code="no_provider", retry_after_s=retry_after_s)


def upstream_failed() -> ApiError:
    """502: the provider could not be reached, broke off or answered 5xx-like nonsense."""
    return ApiError(502, "The provider failed to answer.", kind="server_error", code="upstream_failed")


def upstream_auth() -> ApiError:
    """502: the provider refused this proxy's own credentials; the client can do nothing about it."""
    message = "The provider refused the proxy's credentials."
    return ApiError(502, message, kind="server_error", code="upstream_auth")


def upstream_stalled() -> ApiError:
    """504: the provider was silent for longer than its timeout."""
    return ApiError(504, "The provider did not answer in time.", kind="server_error", code="upstream_stalled")


def budget_cut() -> ApiError:
    """Said in a stream whose key has spent what it had."""
    message = "The budget of this key, its project or its organization ran out in mid-stream."
    return ApiError(402, message, kind="insufficient_quota", code="insufficient_quota")


def shutting_down() -> ApiError:
    """503: this proxy is stopping."""
    return overloaded("The proxy is shutting down.", code="shutting_down")

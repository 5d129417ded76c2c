"""Errors as AWS's SDKs read them: a message in the body and the type in a header; in a stream an exception."""

from __future__ import annotations

from typing import Any

from proxy.metering.refusal import ErrorShape, Refusal

# The error types of the service by HTTP status; any other 4xx is an invalid request.
# https://docs.aws.amazon.com/bedrock/latest/APIReference/CommonErrors.html and its operations
_TYPES = {
    401: "UnrecognizedClientException", 402: "ServiceQuotaExceededException", 403: "AccessDeniedException",
    404: "ResourceNotFoundException", 408: "ModelTimeoutException", 429: "ThrottlingException",
    500: "InternalServerException", 502: "ModelErrorException", 503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}  # fmt: skip
# Those that both streams know; an SDK shows no message of any other.
_STREAM_TYPES = {
    402: "throttlingException", 429: "throttlingException", 500: "internalServerException",
    503: "serviceUnavailableException",
}  # fmt: skip


def _body(refusal: Refusal) -> dict[str, Any]:
    return {"message": refusal.message}


def _headers(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    return (("x-amzn-ErrorType", _TYPES.get(refusal.status, "ValidationException")),)


BEDROCK_ERRORS = ErrorShape(
    "/model/", _body, _body, "modelStreamErrorException", headers=_headers, event_names=_STREAM_TYPES
)

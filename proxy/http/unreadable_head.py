"""The error response to a malformed request head.

Invariant: nothing of the head is quoted. Of the parser's message, only header names of a closed list are used.
"""

from __future__ import annotations

import re

from aiohttp.http_exceptions import BadHttpMessage, BadStatusLine, InvalidHeader, InvalidURLError, LineTooLong

from proxy.http.errors import ApiError, bad_request, malformed

# The path and query of a request: the longest known are Azure's, of some hundred bytes.
TARGET_BYTES_MAX = 8 * 1024
# One header: a token with hundreds of groups, or a browser's cookies for a whole domain.
FIELD_BYTES_MAX = 16 * 1024
FIELDS_MAX = 128
# All headers, as far as they have arrived while the head is incomplete.
HEAD_BYTES_MAX = 64 * 1024

# The parser reports this for a closed list of headers only.
_REPEATED = re.compile(r"Duplicate '([A-Za-z-]{1,20})' header found\.")
_TLS = b"\x16\x03"


class HeadTooLongError(Exception):
    """A head that has not ended within HEAD_BYTES_MAX."""


def refusal_of(error: BaseException | None, *, began: bytes) -> ApiError:
    """The response to a head that begins with `began` and that the parser refused with `error`."""
    if began.startswith(_TLS):
        return bad_request("This port speaks HTTP, and the request is HTTPS.", code="malformed_request")
    if isinstance(error, HeadTooLongError):
        return _too_large(f"The request's headers are together longer than {HEAD_BYTES_MAX} bytes.")
    if isinstance(error, LineTooLong):
        if error.args[1] == TARGET_BYTES_MAX:
            return ApiError(414, f"The URL is longer than {TARGET_BYTES_MAX} bytes.", code="url_too_long")
        return _too_large(f"A header of the request is longer than {FIELD_BYTES_MAX} bytes.")
    if isinstance(error, (BadStatusLine, InvalidURLError)):
        return bad_request("The request line is not well-formed HTTP/1.1.", code="malformed_request")
    if isinstance(error, InvalidHeader):
        return bad_request("A header of the request is not well-formed.", code="malformed_request")
    if isinstance(error, BadHttpMessage):
        return _of_message(error.message)
    return malformed()


def _of_message(message: str) -> ApiError:
    if message == "Too many headers received":
        return _too_large(f"The request has more than {FIELDS_MAX} headers.")
    if message.startswith("Missing 'Host'"):
        return bad_request("The request has no Host header.", param="Host", code="missing_header")
    if repeated := _REPEATED.fullmatch(message):
        name = repeated[1]
        return bad_request(f"The request has more than one {name} header.", param=name, code="duplicate_header")
    return malformed()


def _too_large(message: str) -> ApiError:
    return ApiError(431, message, code="headers_too_large")

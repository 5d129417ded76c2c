"""Parses and writes multipart/form-data: fields are strings, files are `Upload`s; the upstream body is written anew.

Invariants: as strict as the parsing of JSON. Each element has one accepted form, no bytes precede the first part or
follow the last, a name occurs once, and clients cannot predict the upstream boundary. A file's bytes are never changed.
No step reads more than a megabyte, however long the form is.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from proxy.foundation.long_bytes import copied, find
from proxy.foundation.slices import AT_ONCE_BYTES
from proxy.http.errors import ApiError, bad_request
from proxy.metering.request import Upload

# OpenAI's longest form has 15 fields; a list has one part for each value.
PARTS_MAX = 100
PART_HEAD_BYTES_MAX = 4096
# Longer than any field for a model; a longer one is a file without a filename.
FIELD_BYTES_MAX = 1 << 20

_TYPE = re.compile(
    r"""multipart/form-data\s*;(?:\s*charset="?[A-Za-z0-9-]+"?\s*;)?\s*
    boundary=(?:"([A-Za-z0-9'()+_,./:=? -]{0,69}[A-Za-z0-9'()+_,./:=?-])"|([A-Za-z0-9'+_.-]{1,70}))\s*""",
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
_PARAMETER = re.compile(r';[ \t]*([A-Za-z]+\*?)=(?:"((?:[^"\\\r\n]|\\.)*)"|([^\s";]+))[ \t]*')
# Matches every field of the SDKs, and no ambiguous name.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}(?:\[[A-Za-z0-9_.-]{0,100}\]){0,3}", re.ASCII)
_PLAIN_CODINGS = ("binary", "8bit", "7bit")


def parse(body: bytes, content_type: str) -> dict[str, Any]:
    """Name → string or Upload, in order; a list of them if the name ends with []. Raises ApiError."""
    document: dict[str, Any] = {}
    for name, value in _parts(body, _boundary(content_type)):
        if name.endswith("[]"):
            document.setdefault(name, []).append(value)
        elif name in document:
            raise bad_request(f"The form has the field '{name}' twice.", param=name, code="duplicate_key")
        else:
            document[name] = value
    return document


def serialise(document: Mapping[str, Any]) -> tuple[str, list[bytes]]:
    """The result of `parse` → the content type and the body, in pieces."""
    boundary = secrets.token_hex(24)
    pieces: list[bytes] = []
    for name, values in document.items():
        for value in values if isinstance(values, list) else (values,):
            pieces += (b"--", boundary.encode(), b"\r\n", *_written(name, value), b"\r\n")
    pieces.append(f"--{boundary}--\r\n".encode())
    content_type = f"multipart/form-data; boundary={boundary}"
    return content_type, pieces if sum(map(len, pieces)) > AT_ONCE_BYTES else [b"".join(pieces)]


def without_boundary(body: bytes, content_type: str) -> Iterator[memoryview]:
    """The body without its boundary, in pieces; together equal in every retry: SDKs make a new boundary for each."""
    boundary, view, at = _boundary(content_type), memoryview(body), 0
    for _ in range(PARTS_MAX + 1):
        if (found := find(body, boundary, at)) < 0:
            break
        yield view[at:found]
        at = found + len(boundary)
    yield view[at:]


def _boundary(content_type: str) -> bytes:
    match = _TYPE.fullmatch(content_type.strip())
    if match is None:
        message = "The Content-Type must be multipart/form-data, with a boundary."
        raise ApiError(415, message, param="Content-Type", code="unsupported_media_type")
    return b"--" + (match[1] or match[2]).encode()


def _parts(body: bytes, delimiter: bytes) -> Iterator[tuple[str, str | Upload]]:
    separator = b"\r\n" + delimiter
    begins = body.startswith(delimiter)
    starts: list[int] = [len(delimiter) if begins else 0]
    ends: list[int] = []
    while len(ends) <= PARTS_MAX and (found := find(body, separator, starts[-1])) >= 0:
        ends.append(found)
        starts.append(found + len(separator))
    if len(ends) > PARTS_MAX:
        raise bad_request(f"The form has more than {PARTS_MAX} parts.", code="invalid_multipart")
    if not begins or body[starts[-1] : starts[-1] + 5] not in (b"--", b"--\r\n"):
        raise _invalid("it does not begin and end with its boundary")
    for start, end in zip(starts, ends, strict=False):
        head_end = body.find(b"\r\n\r\n", start, min(start + PART_HEAD_BYTES_MAX + 4, end))
        if not body.startswith(b"\r\n", start) or head_end <= start:
            raise _invalid("a part has no head, or its head is too long")
        yield _part(body[start + 2 : head_end], body, head_end + 4, end)


def _part(head: bytes, body: bytes, start: int, end: int) -> tuple[str, str | Upload]:
    """The part whose content is `body[start:end]`."""
    headers = _headers(head)
    name, filename = _disposition(headers.get("content-disposition", ""))
    if headers.get("content-transfer-encoding", "binary").lower() not in _PLAIN_CODINGS:
        message = f"The form's field '{name}' has an unsupported Content-Transfer-Encoding."
        raise bad_request(message, param=name, code="invalid_multipart")
    if filename is not None:
        return name, Upload(filename, headers.get("content-type", ""), copied(body, start, end))
    if end - start > FIELD_BYTES_MAX:
        raise bad_request(
            f"The form's field '{name}' is longer than {FIELD_BYTES_MAX} bytes.", param=name, code="invalid_multipart"
        )
    try:
        return name, body[start:end].decode()
    except UnicodeDecodeError:
        raise bad_request(f"The form's field '{name}' is not UTF-8.", param=name, code="invalid_multipart") from None


def _headers(head: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in head.split(b"\r\n"):
        name, found, value = line.partition(b":")
        try:
            key, text = name.decode("ascii").lower(), value.decode().strip(" \t")
        except UnicodeDecodeError:
            raise _invalid("the head of a part is not UTF-8") from None
        if not found or not key or key != key.strip() or key in headers or not text.isprintable():
            raise _invalid("the head of a part is malformed")
        headers[key] = text
    return headers


def _disposition(text: str) -> tuple[str, str | None]:
    """The name, and the filename if there is one."""
    kind, at = text.partition(";")[0].strip(), text.find(";")
    parameters: dict[str, str] = {}
    while 0 <= at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1].lower() in parameters:
            raise _invalid("the head of a part is malformed")
        parameters[match[1].lower()] = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        at = match.end()
    if kind.lower() != "form-data" or not _NAME.fullmatch(parameters.get("name", "")):
        raise _invalid("a part has no name, or an invalid one")
    extended = parameters.get("filename*", "")
    if extended.lower().startswith("utf-8''"):
        return parameters["name"], unquote(extended[7:])
    return parameters["name"], parameters.get("filename")


def _written(name: str, value: str | Upload) -> Iterator[bytes]:
    yield f'Content-Disposition: form-data; name="{name}"'.encode()
    if isinstance(value, str):
        yield b"\r\n\r\n"
        yield value.encode()
        return
    yield f'; filename="{_quoted(value.filename)}"\r\n'.encode("utf-8", "replace")
    if value.content_type:
        yield f"Content-Type: {value.content_type}\r\n".encode()
    yield b"\r\n"
    yield value.content


def _quoted(text: str) -> str:
    """A filename as a quoted string: `"` as browsers escape it; backslashes and unprintable characters become `_`."""
    return "".join(one if one.isprintable() and one != "\\" else "_" for one in text.replace('"', "%22"))


def _invalid(reason: str) -> ApiError:
    return bad_request(f"The form cannot be read: {reason}.", code="invalid_multipart")

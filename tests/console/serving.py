"""A console in front of a running proxy."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

SECRET = "a-secret-of-0123456789-abcdefghij"


def opened(url: str, path: str, key: str, body: Any = None, **headers: str) -> HTTPResponse:
    """An answer whose body is not read yet."""
    where = urlsplit(url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=10)
    sent = None if body is None else json.dumps(body)
    headers = {"Authorization": f"Bearer {key}", "Connection": "close", **headers}  # the answer closes it all
    connection.request("GET" if body is None else "POST", path, sent, headers)
    return connection.getresponse()


def answer(url: str, path: str, key: str) -> tuple[int, Any]:
    response = opened(url, path, key)
    return response.status, json.loads(response.read())

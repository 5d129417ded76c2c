"""Serves the console page's files.

Invariants:
- The files are read once at start, so no request can name another file.
- The Content-Security-Policy lets a browser run only these files.
- A browser that accepts gzip gets a file compressed once, at start.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from proxy.http.connection import ClientConnection
from proxy.http.server import Routes, Serve

FOLDER = Path(__file__).parent / "page"
FIRST = "index.html"
# The rest of the folder are licences, and type declarations for the checks.
TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-cache",  # cached, but revalidated by ETag: an upgrade is visible at once
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
}
"""headers of the page's files; they replace those of the API"""


def add_page(routes: Routes) -> None:
    """Adds the page at `/` and its files below `/page/`. All their URLs are relative to the page."""
    for path, file in page_files().items():
        routes.local("GET", path, _serving(file.read_bytes(), TYPES[file.suffix]))


def page_files() -> Mapping[str, Path]:
    """Path of a URL → its file."""
    served = (one for one in sorted(FOLDER.rglob("*")) if one.suffix in TYPES)
    return {"/" if one.name == FIRST else f"/page/{one.relative_to(FOLDER).as_posix()}": one for one in served}


def _serving(body: bytes, content_type: str) -> Serve:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag, "Vary": "Accept-Encoding"}
    compressed = gzip.compress(body, mtime=0)

    async def serve(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        if "gzip" not in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)
        coded = {**headers, "Content-Encoding": "gzip"}
        return web.Response(body=compressed, content_type=content_type, charset="utf-8", headers=coded)

    return serve

"""Requests that two readers could read in two ways, byte for byte. Every one of them must be refused.

They belong to the family "Smuggling" of docs/explanation/threat-model.md. A name begins with the part that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

LINE = b"POST /v1/chat/completions HTTP/1.1"
CHUNKED = b"Transfer-Encoding: chunked"


def request(
    body: bytes,
    key: str,
    *headers: bytes,
    line: bytes = LINE,
    host: bytes = b"Host: test\r\n",
    length: bool = True,
) -> bytes:
    """One request: its line, Host, the key, its length if wanted, `headers` as they are."""
    fields = [b"Authorization: Bearer " + key.encode()]
    if length:
        fields.append(b"Content-Length: %d" % len(body))
    return line + b"\r\n" + host + b"".join(one + b"\r\n" for one in (*fields, *headers)) + b"\r\n" + body


def chunked(body: bytes) -> bytes:
    """`body` as one chunk and the last."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def refused(body: bytes, key: str) -> Mapping[str, bytes]:
    """All of them by name, around a `body` that would be served if the rest were right."""
    return {
        **_lengths(body, key),
        **_codings(body, key),
        **_chunks(body, key),
        **_fields(body, key),
        **_hosts(body, key),
        **_lines(body, key),
        **_unusual(body, key),
    }


def _lengths(body: bytes, key: str) -> dict[str, bytes]:
    size = b"%d" % len(body)
    values = {
        "list": size + b", " + size,
        "plus": b"+" + size,
        "negative": b"-1",
        "hexadecimal": b"0x10",
        "spaced": size[:1] + b" " + size[1:],
        "empty": b"",
        "overflow": b"9" * 40,
    }
    made = {f"length {name}": request(body, key, b"Content-Length: " + v, length=False) for name, v in values.items()}
    return made | {
        "length and coding": request(chunked(body), key, CHUNKED),
        "length twice": request(body, key, b"Content-Length: " + size),
        "length twice, different": request(body, key, b"Content-Length: 3"),
        "length with a blank before the colon": request(body, key, b"Content-Length : " + size, length=False),
    }


def _codings(body: bytes, key: str) -> dict[str, bytes]:
    values = {
        "unknown": b"xchunked",
        "chunked first": b"chunked, identity",
        "identity first": b"identity, chunked",
        "gzip first": b"gzip, chunked",
        "chunked twice": b"chunked, chunked",
        "vertical tab": b"\x0bchunked",
        "quoted": b'"chunked"',
        "identity": b"identity",
        "with a parameter": b"chunked;q=1",
    }
    made = {
        f"coding {name}": request(chunked(body), key, b"Transfer-Encoding: " + value, length=False)
        for name, value in values.items()
    }
    old = b"POST /v1/chat/completions HTTP/1.0"
    return made | {
        "coding header twice": request(chunked(body), key, CHUNKED, CHUNKED, length=False),
        "coding with a blank before the colon": request(
            chunked(body), key, b"Transfer-Encoding : chunked", length=False
        ),
        "coding in HTTP/1.0": request(chunked(body), key, CHUNKED, line=old, length=False),
    }


def _chunks(body: bytes, key: str) -> dict[str, bytes]:
    size = b"%x" % len(body)
    whole = size + b"\r\n" + body + b"\r\n"
    bodies = {
        "0x": b"0x" + whole + b"0\r\n\r\n",
        "negative": b"-" + whole + b"0\r\n\r\n",
        "plus": b"+" + whole + b"0\r\n\r\n",
        "underscore": size[:1] + b"_" + whole[1:] + b"0\r\n\r\n",
        "blank before": b" " + whole + b"0\r\n\r\n",
        "blank after": size + b" \r\n" + body + b"\r\n0\r\n\r\n",
        "line ends with LF": size + b"\n" + body + b"\r\n0\r\n\r\n",
        "line ends with CR": size + b"\r" + body + b"\r\n0\r\n\r\n",
        "payload ends with LF": size + b"\r\n" + body + b"\n0\r\n\r\n",
        "extension with LF": size + b";a\nb\r\n" + body + b"\r\n0\r\n\r\n",
        "shorter than it says": b"%x\r\n" % (len(body) - 3) + body + b"\r\n0\r\n\r\n",
        "size of 2 to the 64": b"1%016x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
        "no size": b"\r\n" + body + b"\r\n0\r\n\r\n",
    }
    return {f"chunk {name}": request(wire, key, CHUNKED, length=False) for name, wire in bodies.items()}


def _fields(body: bytes, key: str) -> dict[str, bytes]:
    fields = {
        "CR in a value": b"X-A: b\rX-B: c",
        "NUL in a value": b"X-A: b\0c",
        "DEL in a value": b"X-A: b\x7fc",
        "NUL in a name": b"X\0A: b",
        "blank in a name": b"X A: b",
        "not ASCII in a name": "Xä: b".encode(),
        "no colon": b"XA",
        "no name": b": b",
        "folded": b"X-A: b\r\n c",
        "LF alone": b"X-A: b\nX-B: c",
    }
    made = {f"field {name}": request(body, key, line) for name, line in fields.items()}
    twice = {
        "authorization": b"Authorization: Bearer other",
        "content type": b"Content-Type: text/plain\r\nContent-Type: application/json",
        "content encoding": b"Content-Encoding: identity\r\nContent-Encoding: gzip",
    }
    made |= {f"twice {name}": request(body, key, lines) for name, lines in twice.items()}
    return made | {
        "first field folded": request(body, key, line=LINE + b"\r\n X-A: b"),
        "line feed after Host": request(body, key, host=b"Host: test\n"),
        "bearer with a NUL": request(body, key + "\0"),
    }


def _hosts(body: bytes, key: str) -> dict[str, bytes]:
    hosts = {
        "host missing": b"",
        "host twice": b"Host: a\r\nHost: b\r\n",
        "host empty": b"Host: \r\n",
        "host with a path": b"Host: a/admin?x=\r\n",
        "host with a blank": b"Host: a b\r\n",
        "host with a user": b"Host: a@b\r\n",
        "host list": b"Host: a,b\r\n",
        "host with a long port": b"Host: a:99999999\r\n",
        "host not ASCII": "Host: ä\r\n".encode(),
    }
    return {name: request(body, key, host=host) for name, host in hosts.items()}


def _lines(body: bytes, key: str) -> dict[str, bytes]:
    targets = {
        "absolute": b"http://test/v1/chat/completions",
        "other host": b"http://elsewhere.test/v1/chat/completions",
        "authority": b"elsewhere.test:80",
        "star": b"*",
        "dots": b"/v1/../v1/chat/completions",
        "admin": b"/v1/../admin",
        "encoded dots": b"/v1/%2e%2e/v1/chat/completions",
        "encoded slash": b"/v1%2fchat/completions",
        "encoded letter": b"/v1/chat/completion%73",
        "three slashes": b"///v1/chat/completions",
        "two slashes within": b"/v1/chat//completions",
        "backslashes": b"\\v1\\chat\\completions",
        "parameter": b"/v1/chat/completions;x",
        "fragment": b"/v1/chat/completions#x",
        "slashes at the end": b"/v1/chat/completions//",
        "upper case": b"/V1/chat/completions",
        "NUL": b"/v1/chat\0/completions",
        "not ASCII": "/v1/chat/ä".encode(),
    }
    made = {f"target {name}": request(body, key, line=b"POST " + t + b" HTTP/1.1") for name, t in targets.items()}
    lines = {
        "tabs": b"POST\t/v1/chat/completions\tHTTP/1.1",
        "HTTP/2.0": b"POST /v1/chat/completions HTTP/2.0",
        "HTTP/1.2": b"POST /v1/chat/completions HTTP/1.2",
        "no version": b"POST /v1/chat/completions",
        "lower case method": b"post /v1/chat/completions HTTP/1.1",
        "method not a token": b"P(ST /v1/chat/completions HTTP/1.1",
        "blank before": b" POST /v1/chat/completions HTTP/1.1",
    }
    made |= {f"line {name}": request(body, key, line=line) for name, line in lines.items()}
    return made | {
        "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
    }


def _unusual(body: bytes, key: str) -> dict[str, bytes]:
    get = b"GET /v1/models HTTP/1.1"
    connect = b"CONNECT elsewhere.test:443 HTTP/1.1"
    long_line = b"POST /" + b"a" * 20_000 + b" HTTP/1.1"
    return {
        "GET with a body": request(body, key, line=get),
        "GET with chunks": request(chunked(body), key, CHUNKED, line=get, length=False),
        "trailer announced": request(chunked(body), key, CHUNKED, b"Trailer: Authorization", length=False),
        "compressed": request(body, key, b"Content-Encoding: gzip"),
        "upgrade": request(body, key, b"Connection: upgrade", b"Upgrade: websocket"),
        "GET upgrade": request(b"", key, b"Connection: upgrade", b"Upgrade: websocket", line=get, length=False),
        "CONNECT": request(b"", key, line=connect, length=False),
        "CONNECT to the route": request(b"", key, line=b"CONNECT /v1/chat/completions HTTP/1.1", length=False),
        "expectation": request(body, key, b"Expect: 200-ok"),
        "long field": request(body, key, b"X-A: " + b"a" * 20_000),
        "many fields": request(body, key, *(b"X-%d: a" % n for n in range(500))),
        "long target": request(body, key, line=long_line),
    }

"""Headers: what crosses is on a list, and a head that could be read in two ways is not read at all."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.foundation.header_names import HeaderNames
from proxy.http.errors import ApiError
from proxy.http.framing import Head
from proxy.http.headers import HeaderRules, downward, upward, validate_head

Pairs = list[tuple[str, str]]
NAMES = st.sampled_from(
    ["Authorization", "Cookie", "Set-Cookie", "Connection", "OpenAI-Beta", "traceparent", "tracestate", "X-Request-Id",
     "Content-Type", "Retry-After", "openai-organization", "X-Stainless-Retry-Count", "Server", "Host", "User-Agent",
     "x-tokenweir-exchange", "Content-Encoding", "Content-Length", "Transfer-Encoding", "Location"]
) | st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True)  # fmt: skip
PAIRS = st.lists(st.tuples(NAMES, st.text(max_size=20)), max_size=12)


def down(upstream: Head, exchange_id: str, *, streamed: bool) -> CIMultiDict[str]:
    """As a client reads them."""
    return CIMultiDict(downward(upstream, exchange_id, streamed=streamed))


def multi(pairs: Pairs) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def head(pairs: Pairs) -> Head:
    """The head of a provider's answer: names in lower case, as they are kept."""
    return Head(200, tuple((name.lower(), value) for name, value in pairs), chunked=True, length=None, keep_alive=True)


@given(PAIRS)
def test_what_goes_up_is_on_the_list(pairs: Pairs) -> None:
    lines = upward(multi(pairs)).split("\r\n")
    assert lines.pop() == "", "every line has its end"
    names = [line.partition(": ")[0] for line in lines]
    usual = {"OpenAI-Beta", "X-Stainless-Retry-Count", "traceparent", "tracestate", "HTTP-Referer", "X-Title"}
    assert set(names) <= usual
    assert len(names) == len(set(names))
    assert all(line.isascii() and line.isprintable() for line in lines)


@given(PAIRS, st.booleans())
def test_what_comes_down_is_on_the_list(pairs: Pairs, streamed: bool) -> None:
    headers = down(head(pairs), "our-id", streamed=streamed)
    names = {name.lower() for name in headers}
    assert not names & {"set-cookie", "authorization", "openai-organization", "connection", "content-length",
                        "transfer-encoding", "location", "host"}  # fmt: skip
    assert headers.getall("x-tokenweir-exchange") == ["our-id"]
    assert headers.getall("Server") == ["tokenweir"]
    assert ("cache-control" in names) is streamed
    assert all(value.isascii() and value.isprintable() for value in headers.values())


# -- what an operator configures ---------------------------------------------------------------------------------


def rules(*, fixed: tuple[str, ...] = (), up: tuple[str, ...] = (), down: tuple[str, ...] = ()) -> HeaderRules:
    return HeaderRules(frozenset(fixed), HeaderNames(up), HeaderNames(down))


ALL_OF_THEM = tuple(f"{letter}*" for letter in "abcdefghijklmnopqrstuvwxyz0123456789")


@given(PAIRS)
def test_no_pattern_lets_credentials_or_framing_pass(pairs: Pairs) -> None:
    every = rules(up=ALL_OF_THEM, down=ALL_OF_THEM)
    up = upward(multi(pairs), rules=every).split("\r\n")[:-1]
    down = downward(head(pairs), "our-id", streamed=False, rules=every)
    assert all(line.isascii() and line.isprintable() for line in up)
    names = [line.partition(": ")[0].lower() for line in up]
    assert len(names) == len(set(names))
    for name in {*names, *(name.lower() for name, _ in down[:-2])}:
        assert name not in {"authorization", "cookie", "set-cookie", "connection", "content-length", "host", "server",
                            "transfer-encoding", "location", "x-tokenweir-exchange", "x-api-key"}  # fmt: skip


def test_an_operators_header_replaces_the_clients() -> None:
    client = multi([("OpenAI-Beta", "x"), ("x-title", "theirs"), ("X-Team", "a"), ("X-Team-Id", "7"), ("X-Tea", "no")])
    lines = upward(client, rules=rules(fixed=("x-title",), up=("x-team", "x-team-*")))
    assert lines == "OpenAI-Beta: x\r\nX-Team: a\r\nX-Team-Id: 7\r\n"


@pytest.mark.parametrize(
    ("sent", "up"),
    [([("User-Agent", "curl/8")], "User-Agent: curl/8\r\n"), ([], "User-Agent: tokenweir\r\n")],
)
def test_a_clients_agent_passes_or_ours_goes(sent: Pairs, up: str) -> None:
    assert upward(multi(sent), rules=rules(up=("user-agent",))) == up
    assert upward(multi(sent), rules=rules(up=("user-agent",), fixed=("user-agent",))) == ""


def test_our_limits_win_over_the_providers() -> None:
    theirs = head([("x-ratelimit-limit-requests", "9"), ("x-ratelimit-limit-tokens", "8"), ("x-other", "7")])
    own = (("x-ratelimit-limit-requests", "1"),)
    came = downward(theirs, "id", streamed=False, rules=rules(down=("x-ratelimit-*",)), own=own)
    assert [one for one in came if one[0].startswith("x-r")] == [("x-ratelimit-limit-tokens", "8"), *own]


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "a\tb", "é", "\x7f", "\udc80"])
def test_a_value_that_could_end_a_header_is_dropped(value: str) -> None:
    assert upward(multi([("OpenAI-Beta", value)])) == ""
    assert "X-Request-Id" not in down(head([("X-Request-Id", value)]), "id", streamed=False)


def test_a_plain_value_crosses_as_it_is() -> None:
    assert upward(multi([("openai-beta", "assistants=v2")])) == "OpenAI-Beta: assistants=v2\r\n"
    assert down(head([("X-Request-Id", "r 1")]), "id", streamed=False)["X-Request-Id"] == "r 1"


def test_a_stream_is_not_to_be_kept_back_by_anybody() -> None:
    headers = down(head([("Content-Type", "text/event-stream"), ("Cache-Control", "max-age=1")]), "x", streamed=True)
    assert headers.getall("Cache-Control") == ["no-cache, no-transform"]
    assert headers["X-Accel-Buffering"] == "no"


def ask(pairs: Pairs, *, method: str = "POST", version: HttpVersion = HttpVersion11) -> bool:
    """What is said of a request with these headers (and a Host)."""
    host: Pairs = [] if any(name.lower() == "host" for name, _ in pairs) else [("Host", "a")]
    headers = CIMultiDict([*host, *pairs])
    return validate_head(make_mocked_request(method, "/", headers=headers, version=version))


@pytest.mark.parametrize(
    "name",
    ["Authorization", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host", "Transfer-Encoding",
     "Upgrade", "Idempotency-Key"],
)  # fmt: skip
def test_what_decides_stands_once(name: str) -> None:
    with pytest.raises(ApiError) as refusal:
        ask([(name, "1"), (name.lower(), "1")])
    assert (refusal.value.status, refusal.value.param) == (400, name)


@pytest.mark.parametrize(
    ("pairs", "more", "status"),
    [
        ([("Transfer-Encoding", "gzip, chunked")], {}, 400),
        ([("Transfer-Encoding", "identity")], {}, 400),
        ([("Transfer-Encoding", "chunked")], {"version": HttpVersion10}, 400),
        ([("Content-Length", "1")], {"method": "GET"}, 400),
        ([("Transfer-Encoding", "chunked")], {"method": "GET"}, 400),
        ([], {"version": HttpVersion(0, 9)}, 505),
        ([], {"version": HttpVersion(2, 0)}, 505),
        ([("Expect", "200-ok")], {}, 417),
        ([("Trailer", "X")], {}, 400),
        ([("Upgrade", "spdy/3.1")], {}, 426),
        ([("Upgrade", "h2c, websocket")], {}, 426),
        ([("Upgrade", "websoc\N{KELVIN SIGN}et")], {}, 426),
        ([("Upgrade", "websocket\N{NO-BREAK SPACE}")], {}, 426),
        ([("Transfer-Encoding", "chun\N{KELVIN SIGN}ed")], {}, 400),
        ([("Expect", "100-continue\N{NO-BREAK SPACE}")], {}, 417),
        *(([("Host", host)], {}, 400) for host in ("", "a/b", "a b", "a@b", "a,b", "a:", "a:x", "a:123456", "é", "[::1",
                                                    "a?b", "a#b", "http://a", "a\\b", "a;b", "[::1]:")),
    ],
)  # fmt: skip
def test_refused(pairs: Pairs, more: dict[str, Any], status: int) -> None:
    with pytest.raises(ApiError) as refusal:
        ask(pairs, **more)
    assert refusal.value.status == status


@pytest.mark.parametrize(
    ("pairs", "more", "closes"),
    [
        ([], {}, False),
        ([("X-A", "1"), ("X-A", "2"), ("Accept", "a"), ("Accept", "b")], {}, False),
        ([("Transfer-Encoding", "Chunked")], {}, False),
        ([("Content-Length", "0")], {"method": "GET"}, False),
        ([], {"version": HttpVersion10}, False),
        ([("Expect", "100-Continue")], {}, False),
        ([("Upgrade", "h2c"), ("Connection", "Upgrade")], {}, True),
        ([("Upgrade", "WebSocket"), ("Connection", "Upgrade")], {}, True),
        *(([("Host", host)], {}, False) for host in ("a", "a.b:80", "127.0.0.1:80", "[::1]", "[::1]:80", "a_b-c~d.e")),
    ],
)  # fmt: skip
def test_taken(pairs: Pairs, more: dict[str, Any], closes: bool) -> None:
    assert ask(pairs, **more) is closes

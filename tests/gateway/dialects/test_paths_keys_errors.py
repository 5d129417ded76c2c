"""What every wire language has a place for: names in paths, the query, keys where an SDK puts them, its own errors."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from proxy.foundation.secret import Secret
from proxy.gateway.exchange.upstream_request import target
from proxy.gateway.upstream.provider import Provider
from proxy.http import errors
from proxy.http.credentials import presented
from proxy.http.errors import ApiError
from proxy.http.server import Routes
from proxy.metering.dialect import NAME, Dialect, KeyHeader
from proxy.metering.dialects import DIALECT_NAMES, DIALECTS, FAMILIES, supports
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.refusal import ErrorShape
from proxy.metering.wire.framing import SSE, Framing
from proxy.metering.wire.sse import EventFramer
from proxy.settings import ProviderSettings

LINES = Framing("application/x-ndjson", EventFramer, lambda document, _name: document + b"\n", b"")
ARRAY = Framing("application/json", EventFramer, lambda document, _name: document, b"")
TOY = dataclasses.replace(
    OPENAI_CHAT,
    name="toy.say",
    paths=("/toy/say", f"/toy/models/{NAME}:say"),
    appended=f"/models/{NAME}:say",
    errors=ErrorShape("/toy/", lambda no: {"no": no.message}, lambda no: {"stop": no.message}, "stopped"),
    key_header=KeyHeader.X_GOOG_API_KEY,
    query=("alt", "api-version"),
)


class Asked(Exception):
    """Who serves, and which name was in the path."""


async def tell(_request: Any, _connection: Any, dialect: Dialect, named: str | None) -> Any:
    raise Asked(dialect.name, named)


def routes() -> Routes:
    made = Routes()
    made.metered(OPENAI_CHAT, tell)
    made.metered(TOY, tell)
    return made


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/toy/say", None),
        ("/toy/models/weir:say", "weir"),
        ("/toy/models/weir:say?alt=sse", "weir"),
        ("/toy/models/a/b-1.5:8b@x:say", "a/b-1.5:8b@x"),
        ("/toy/models/a%2Fb-1.5%3a8b%40x:say", "a/b-1.5:8b@x"),
    ],
)
async def test_a_name_in_a_path_is_found_as_it_stands_there_or_escaped(path: str, named: str | None) -> None:
    with pytest.raises(Asked) as asked:
        await routes().find("POST", path)(None, None)  # type: ignore[arg-type]
    assert asked.value.args == ("toy.say", named)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a", "a/../b", "a/./b", "a//b", "/a", "a/", "a/..", "a b", "a?b", "é", "-a", "a" * 300, "a;b",
     "a#b", "a\\b", "a\nb", "a%252fb", "a%2f%2fb", "%2fa", "a%2f", "a%2f..%2fb", "a/%2e%2e/b", "a%00b", "a%5cb",
     "a%3fb", "a%", "a%20b"],
)  # fmt: skip
def test_what_is_no_name_leads_nowhere(name: str) -> None:
    with pytest.raises(ApiError) as refusal:
        routes().find("POST", f"/toy/models/{name}:say")
    assert refusal.value.status == 404


def test_another_method_at_a_name_is_unknown_and_a_path_is_registered_once() -> None:
    """What else a name could be, nobody knows: Google's clients ask for `{model}:method` and expect a 404."""
    with pytest.raises(ApiError) as refusal:
        routes().find("GET", "/toy/models/weir:say")
    assert refusal.value.status == 404
    with pytest.raises(ValueError, match="twice"):
        routes().metered(dataclasses.replace(TOY, paths=TOY.paths[1:]), tell)


def test_a_refusal_has_the_shape_of_where_it_was_asked() -> None:
    made = routes()
    refusal = errors.unknown_model("weir")
    assert json.loads(refusal.body(made.shape("/toy/nowhere"))) == {"no": refusal.message}
    assert json.loads(refusal.body(made.shape("/v1/nowhere")))["error"]["code"] == "model_not_found"
    made.metered(dataclasses.replace(TOY, paths=(f"/v1/toys/{NAME}:say",)), tell)
    assert made.shape("/v1/toys/weir:say?alt=sse") is TOY.errors
    assert made.shape("/v1/toys/weir:sing") is OPENAI_CHAT.errors
    assert refusal.event(TOY.errors, SSE) == b'event: stopped\ndata: {"stop":"%b"}\n\n' % refusal.message.encode()
    assert refusal.event(TOY.errors, LINES) == b'{"stop":"%b"}\n' % refusal.message.encode()


@pytest.mark.parametrize(
    ("raw_path", "upstream"),
    [
        ("/toy/say", "/models/up/weir@1:say"),
        ("/toy/say?alt=sse", "/models/up/weir@1:say?alt=sse"),
        ("/toy/say?key=secret&api-version=2024-10&x=1", "/models/up/weir@1:say?api-version=2024-10"),
        ("/toy/say?alt=a b&api-version=a/../b", "/models/up/weir@1:say"),
    ],
)
def test_the_query_goes_up_by_name(raw_path: str, upstream: str) -> None:
    assert target(TOY, "up/weir@1", raw_path) == upstream
    assert target(OPENAI_CHAT, "up/weir@1", raw_path) == "/chat/completions"


@pytest.mark.parametrize(("query", "sent"), [("alt=sse&b=1", "?alt=sse"), ("alt=proto", ""), ("alt=", ""), ("alt", "")])
def test_a_query_can_be_bound_to_its_values(query: str, sent: str) -> None:
    bound = dataclasses.replace(TOY, query=("alt=sse", "alt=json"))
    assert target(bound, "up", f"/toy/say?{query}") == f"/models/up:say{sent}"


def test_a_name_cannot_leave_its_place_upstream() -> None:
    assert target(TOY, "a b\r\nX: 1?x#y%2f", "/") == "/models/a%20b%0D%0AX:%201%3Fx%23y%252f:say"


@pytest.mark.parametrize(
    ("dialect", "setting", "line"),
    [
        (OPENAI_CHAT, None, b"Authorization: Bearer s3cret"),
        (OPENAI_CHAT, KeyHeader.API_KEY, b"api-key: s3cret"),
        (TOY, None, b"x-goog-api-key: s3cret"),
        (TOY, KeyHeader.AUTHORIZATION, b"Authorization: Bearer s3cret"),
    ],
)
def test_the_provider_gets_its_key_where_it_wants_it(dialect: Dialect, setting: Any, line: bytes) -> None:
    settings = ProviderSettings(name="p", base_url="http://p.test/v1", api_key=Secret("s3cret"), key_header=setting)
    provider = Provider.of(settings, write_stall_s=60)
    head = provider.request(dialect, "/x", [b"{}"], "")[0].partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert [one for one in head if b"s3cret" in one] == [line]


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"Authorization": "Bearer tw-1"}, "tw-1"),
        ({"Authorization": "tw-1"}, "tw-1"),
        ({"X-Api-Key": "tw-1"}, "tw-1"),
        ({"x-goog-api-key": " tw-1 "}, "tw-1"),
        ({"api-key": "tw-1"}, "tw-1"),
        ({"api-key": "tw-1", "Authorization": "Bearer tw-1"}, "tw-1"),
        # Claude Code with both variables set; an empty variable; an application that knows several providers.
        ({"x-api-key": "sk-ant-1", "Authorization": "Bearer tw-1"}, "tw-1"),
        ({"x-api-key": "tw-1", "Authorization": "Bearer sk-1"}, "tw-1"),
        ({"x-api-key": "tw-1", "Authorization": "Bearer "}, "tw-1"),
        ({"x-api-key": "tw-1", "Authorization": ""}, "tw-1"),
        ({"x-api-key": "sk-ant-1", "api-key": "sk-az-1", "Authorization": "Bearer tw-1"}, "tw-1"),
        ({"Authorization": "Bearer "}, None),
    ],
)
def test_a_key_is_taken_from_where_the_sdk_puts_it(headers: dict[str, str], key: str | None) -> None:
    assert presented(make_mocked_request("POST", "/toy/say?x=1", headers=headers), is_ours) == key


def is_ours(text: str) -> bool:
    return text.startswith("tw-")


def test_keys_that_disagree_and_keys_in_the_url_are_refused_unseen() -> None:
    two = {"x-api-key": "tw-1", "Authorization": "Bearer tw-2"}
    for request, code in (
        (make_mocked_request("POST", "/toy/say", headers=two), "ambiguous_key"),
        (make_mocked_request("POST", "/toy/say?alt=sse&key=tw-1"), "invalid_api_key"),
    ):
        with pytest.raises(ApiError) as refusal:
            presented(request, is_ours)
        assert refusal.value.code == code
        assert "tw-" not in refusal.value.message


@pytest.mark.parametrize(
    ("content_type", "streamed", "framing"),
    [
        ("text/event-stream", True, SSE), ("text/event-stream", False, SSE), ("application/x-ndjson", True, LINES),
        ("application/json", True, ARRAY), ("application/json", False, None), ("", True, SSE), ("", False, None),
    ],
)  # fmt: skip
def test_what_came_says_how_it_is_read(content_type: str, streamed: bool, framing: Framing | None) -> None:
    many = dataclasses.replace(TOY, framings=(SSE, LINES, ARRAY))
    assert many.framing(content_type, streamed=streamed) is framing


def test_a_json_answer_to_a_stream_is_no_stream_unless_the_language_has_such() -> None:
    assert OPENAI_CHAT.framing("application/json", streamed=True) is None


def test_names_are_of_families_and_every_dialect_is_spoken() -> None:
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
    paths = [path for dialect in DIALECTS for path in dialect.paths]
    assert len(set(paths)) == len(paths)
    assert set(DIALECT_NAMES) == {*FAMILIES, *(dialect.name for dialect in DIALECTS)}
    for dialect in DIALECTS:
        assert supports((dialect.name,), dialect)
        assert supports((dialect.name.partition(".")[0],), dialect)
        assert not supports(("toy", "openai.chats"), dialect)

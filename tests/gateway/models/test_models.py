"""Lists of models: what is fetched, what is kept, who sees what, and in which format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.models import fetched_lists
from proxy.gateway.models.fetched_lists import FRESH_S, LIST_BYTES_MAX, RETRY_S
from proxy.gateway.models.formats import ANTHROPIC, COHERE, GEMINI, MISTRAL, OLLAMA, OPENAI, Format, format_for
from proxy.gateway.models.listed_model import ListedModel, dialects_of
from proxy.gateway.models.pages import Paging
from proxy.gateway.models.provider_lists import (
    MODELS_MAX,
    PROVIDER_LISTS,
    UnreadableListError,
    provider_list,
    read_list,
)
from proxy.http.errors import ApiError
from proxy.metering.dialects import FAMILIES
from proxy.settings import ProviderSettings
from tests.support.model_lists import KEY, LISTS, PROVIDER_SECRET, Listing, Upstream, listing, upstream
from tests.support.net import closed_port

pytestmark = pytest.mark.io

GOOD = {"Authorization": "Bearer good"}
NAMED = {"fast": {"provider": "openai", "upstream_model": "gpt-4o-mini"}, "gpt-4o": {"provider": "openai"}}
ANY = {"*": {"provider": "openai"}}
OPENAI_NAMES = ["gpt-4o", "gpt-4o-mini", "meta/llama-3"]


@pytest.fixture
async def providers() -> AsyncIterator[Upstream]:
    async with upstream() as made:
        yield made


@pytest.fixture
async def at(providers: Upstream) -> AsyncIterator[Listing]:
    """All names are those of the one provider's list."""
    async with listing(providers, ANY, "openai") as made:
        yield made


async def get(
    at: Listing, path: str = "/v1/models", headers: Mapping[str, str] = GOOD, body: Any = None
) -> tuple[int, Any]:
    """Status and document of one answer. `body`: it is a POST."""
    async with aiohttp.ClientSession() as session:
        method = "GET" if body is None else "POST"
        url = aiohttp.client.URL(at.url + path, encoded=True)
        async with session.request(method, url, headers=headers, json=body) as answer:
            return answer.status, await answer.json()


async def names(at: Listing, headers: Mapping[str, str] = GOOD) -> list[str]:
    """What a client sees."""
    status, document = await get(at, headers=headers)
    assert status == 200
    return [one["id"] for one in document["data"]]


# -- who sees what


async def test_behind_the_star_is_what_the_provider_lists(providers: Upstream, at: Listing) -> None:
    assert providers.asked == [], "nobody has asked yet"
    status, document = await get(at)
    assert status == 200
    assert document["object"] == "list"
    assert document["data"][0] == {
        "id": "gpt-4o", "object": "model", "created": 1715367049, "owned_by": "openai"
    }  # fmt: skip
    assert [one["id"] for one in document["data"]] == OPENAI_NAMES
    ((path, headers),) = providers.asked
    assert (path, headers["Authorization"]) == ("/openai/models", f"Bearer {PROVIDER_SECRET}")


async def test_configured_names_come_first_and_hide_their_like(providers: Upstream) -> None:
    async with listing(providers, NAMED | ANY, "openai") as at:
        assert await names(at) == ["fast", "gpt-4o", "gpt-4o-mini", "meta/llama-3"]
        assert (await get(at, "/v1/models/gpt-4o"))[1]["created"] == 0, "what is configured is not the provider's"


async def test_a_prefix_is_part_of_the_clients_name_and_prefers_its_own_provider(providers: Upstream) -> None:
    models = {"*": {"provider": "openai"}, "meta/*": {"provider": "anthropic"}}
    async with listing(providers, models, "openai", "anthropic") as at:
        assert await names(at) == [
            "gpt-4o", "gpt-4o-mini", "meta/claude-opus-4-5-20251101", "meta/claude-3-haiku-20240307"
        ]  # fmt: skip
        assert (await get(at, "/v1/models/meta/llama-3"))[0] == 404, "it would be sent to the other provider"


async def test_several_providers_are_merged_in_their_order(providers: Upstream) -> None:
    models = {"*": {"providers": [{"provider": "anthropic"}, {"provider": "openai"}]}}
    async with listing(providers, models, "openai", "anthropic") as at:
        assert await names(at) == ["claude-opus-4-5-20251101", "claude-3-haiku-20240307", *OPENAI_NAMES]
        assert len(providers.asked) == 2


@pytest.mark.parametrize(
    ("allowed", "seen", "fetches"),
    [
        (["fast"], ["fast"], 0),
        (["fast", "meta/llama-3"], ["fast", "meta/llama-3"], 1),
        (["gpt-5-preview"], ["gpt-5-preview"], 1),  # its provider lists no such model, the operator does
        (["*"], ["*"], 1),
    ],
)
async def test_a_key_sees_what_it_may_use(
    providers: Upstream, allowed: list[str], seen: list[str], fetches: int
) -> None:
    async with listing(providers, NAMED | ANY, "openai") as at:
        at.allow(*allowed)
        assert await names(at) == seen
        assert len(providers.asked) == fetches
        for name in (*OPENAI_NAMES, *allowed):
            if name != "*":
                assert (await get(at, f"/v1/models/{name}"))[0] == (200 if name in allowed else 404)


async def test_without_a_pattern_nobody_is_asked(providers: Upstream) -> None:
    async with listing(providers, NAMED, "openai") as at:
        assert await names(at) == ["fast", "gpt-4o"]
        assert (await get(at, "/v1/models/other"))[0] == 404
    assert providers.asked == []


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/gpt-4o", "/api/tags", "/api/version", "/v1beta/models"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer bad"}])
async def test_a_list_needs_a_key(providers: Upstream, at: Listing, path: str, headers: dict[str, str]) -> None:
    assert (await get(at, path, headers))[0] == 401
    assert providers.asked == []


# -- one of them


@pytest.mark.parametrize(
    "path",
    ["/v1/models/meta/llama-3", "/v1/models/meta%2Fllama-3", "/v1/models/meta%2fllama%2D3", "/models/meta/llama-3",
     "//v1/models/meta%2Fllama-3", "/openai/v1/models/meta%2Fllama-3", "/openai/models/meta/llama-3?api-version=1"],
)  # fmt: skip
async def test_one_model(at: Listing, path: str) -> None:
    expected = {"id": "meta/llama-3", "object": "model", "created": 1, "owned_by": "openai"}
    assert await get(at, path) == (200, expected)


async def test_hidden_providers_own_no_model(at: Listing) -> None:
    catalogue = at.catalogue
    catalogue.changed_to(catalogue._models, catalogue._providers, hides_providers=True)()
    _, listed = await get(at, "/v1/models")
    _, one = await get(at, "/v1/models/meta/llama-3")
    assert {model["owned_by"] for model in [*listed["data"], one]} == {"tokenweir"}


@pytest.mark.parametrize(
    "path",
    ["/v1/models/..%2Fhealthz", "/v1/models/a%252Fb", "/v1/models/a%0Ab", "/v1/models/%2F", "/v1/models/a%2F%2Fb",
     "/v1%2Fmodels/gpt-4o", "/v1/models/a%3Fb", "/v1/models/%E2%82%AC"],
)  # fmt: skip
async def test_what_cannot_be_a_name_is_no_path(at: Listing, path: str) -> None:
    status, document = await get(at, path)
    assert (status, document["error"]["code"]) == (404, "unknown_url")


async def test_a_model_of_a_provider_that_lists_none_may_exist(providers: Upstream, at: Listing) -> None:
    providers.answers.clear()
    assert await names(at) == []
    assert (await get(at, "/v1/models/gpt-4o"))[0] == 200
    assert len(providers.asked) == 1


# -- fetching


async def test_however_many_ask_one_list_is_fetched(providers: Upstream, at: Listing) -> None:
    providers.silent = True
    leaving = [asyncio.ensure_future(names(at)) for _ in range(3)]  # noqa: TID251
    staying = [asyncio.ensure_future(names(at)) for _ in range(20)]  # noqa: TID251
    while not providers.asked:
        await asyncio.sleep(0.01)
    for one in leaving:
        one.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    providers.silent = False
    assert await asyncio.gather(*staying) == [OPENAI_NAMES] * 20
    assert len(providers.asked) == 1


async def test_a_list_is_kept_for_minutes(providers: Upstream, at: Listing) -> None:
    await names(at)
    providers.answers["/openai/models"] = b'{"data": [{"id": "new"}]}'
    at.now = FRESH_S - 1
    assert await names(at) == OPENAI_NAMES
    at.now = FRESH_S
    assert await names(at) == ["new"]
    assert len(providers.asked) == 2


def broken(how: str, providers: Upstream) -> None:
    """From now on, the provider's answer is of no use."""
    match how:
        case "500":
            providers.status = 500
        case "redirect":
            providers.status, providers.headers = 302, {"Location": "http://127.0.0.1:1/"}
        case "404":
            providers.answers.clear()
        case "compressed":
            providers.headers = {"Content-Encoding": "gzip"}
        case "20 MB":
            rows = [{"id": f"m{number}", "description": "x" * 2000} for number in range(10_000)]
            providers.answers["/openai/models"] = json.dumps({"data": rows}).encode()
        case "deep":
            providers.answers["/openai/models"] = b'{"data":' + b"[" * 100_000
        case _:
            providers.answers["/openai/models"] = how.encode()


@pytest.mark.parametrize(
    "how",
    [
        "500",
        "redirect",
        "404",
        "compressed",
        "20 MB",
        "deep",
        "",
        "<html>",
        "{}",
        "null",
        '{"data": 1}',
        '{"data": [1]}',
    ],
)
async def test_a_provider_that_fails_keeps_its_list_and_hides_no_other(providers: Upstream, how: str) -> None:
    models = {"*": {"provider": "openai"}, "a/*": {"provider": "other"}}
    other = {"base_url": f"{providers.url}/openai", "dialects": ["openai"]}
    async with listing(providers, models, "openai", other=other) as at:
        first = await names(at)
        assert first == [*OPENAI_NAMES, *(f"a/{name}" for name in OPENAI_NAMES)]
        broken(how, providers)
        at.now = FRESH_S
        assert await names(at) == first
        assert len(providers.asked) == 4
        at.now += RETRY_S - 1
        assert await names(at) == first
        assert len(providers.asked) == 4, "it is left alone for a while"
        providers.status, providers.headers = 200, {}
        providers.answers["/openai/models"] = b'[{"id": "back"}]'
        at.now += 1
        assert await names(at) == ["back", "a/back"]


async def test_a_provider_that_hangs_or_is_gone_is_left_out(
    providers: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_lists, "FETCH_S", 0.2)
    models = {"*": {"provider": "openai"}, "gone/*": {"provider": "gone"}, "named": {"provider": "gone"}}
    gone = {"base_url": f"http://127.0.0.1:{closed_port()}", "dialects": ["openai"]}
    providers.silent = True
    async with listing(providers, models, "openai", gone=gone) as at:
        assert await names(at) == ["named"]
        assert await names(at) == ["named"]
        assert len(providers.asked) == 1
        providers.silent = False
        at.now = RETRY_S
        assert await names(at) == ["named", *OPENAI_NAMES]


async def test_the_secret_is_in_no_answer_and_in_no_log(providers: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"id": PROVIDER_SECRET}, {"id": f"x-{PROVIDER_SECRET}"}, {"id": "good", "owned_by": PROVIDER_SECRET}]
    providers.answers["/openai/models"] = json.dumps({"data": rows}).encode()
    async with listing(providers, ANY, "openai") as at:
        status, document = await get(at)
        assert status == 200
        assert [one["id"] for one in document["data"]] == ["good"]
        assert PROVIDER_SECRET not in str(document)
        providers.answers["/openai/models"] = PROVIDER_SECRET.encode()
        at.now = FRESH_S
        await names(at)
    assert "openai cannot be listed: not a list of models" in caplog.text
    assert PROVIDER_SECRET not in caplog.text


# -- what providers answer


def provider(family: str) -> ProviderSettings:
    dialects = {"cohere": ("cohere", "openai.rerank"), "mistral": ("mistral", "openai.chat")}
    return ProviderSettings(name=family, base_url="http://provider.test", dialects=dialects.get(family, (family,)))


@pytest.mark.parametrize(
    ("family", "path", "expected"),
    [
        ("openai", "/openai/models", [("gpt-4o", 1715367049, 0, 0), ("gpt-4o-mini", 1721172741, 0, 0),
                                      ("meta/llama-3", 1, 131072, 0)]),
        ("anthropic", "/anthropic/models?limit=1000", [("claude-opus-4-5-20251101", 1763942400, 200000, 64000),
                                                       ("claude-3-haiku-20240307", 1709769600, 0, 0)]),
        ("gemini", "/gemini/models?pageSize=1000", [("gemini-2.5-flash", 0, 1048576, 65536),
                                                 ("embedding-001", 0, 0, 0)]),
        ("cohere", "/cohere/v1/models?page_size=1000", [("command-r-plus", 0, 128000, 0), ("embed-v4.0", 0, 0, 0)]),
        ("mistral", "/mistral/models", [("codestral-latest", 1700000000, 32768, 0), ("mistral-small", 0, 0, 0)]),
        ("ollama", "/ollama/tags", [("llama3.2:latest", 1777941464, 0, 0)]),
    ],
)  # fmt: skip
async def test_each_family_is_asked_and_read_in_its_own_way(
    providers: Upstream, family: str, path: str, expected: list[tuple[str, int, int, int]]
) -> None:
    async with listing(providers, {"*": {"provider": family}}, family) as at:
        found = (await at.catalogue.models(KEY)).values()
        ((asked, headers),) = providers.asked
    assert asked == path
    assert [(one.name, one.created, one.input_tokens_max, one.output_tokens_max) for one in found] == expected
    header = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}.get(family, "Authorization")
    assert PROVIDER_SECRET in headers[header]
    assert sum(PROVIDER_SECRET in value for value in headers.values()) == 1
    assert ("anthropic-version" in headers) == (family == "anthropic")


async def test_the_settings_say_which_header_has_the_key(providers: Upstream) -> None:
    other = providers.section("openai") | {"key_header": "api-key"}
    async with listing(providers, {"*": {"provider": "other"}}, other=other) as at:
        await names(at)
        ((_, headers),) = providers.asked
    assert headers["api-key"] == PROVIDER_SECRET
    assert "Authorization" not in headers


async def test_a_provider_without_a_list_is_not_asked(providers: Upstream) -> None:
    azure = providers.section("azure")
    async with listing(providers, {"*": {"provider": "azure"}}, azure=azure) as at:
        assert await names(at) == []
    assert providers.asked == []


def test_every_family_has_a_list_but_the_clouds() -> None:
    assert set(FAMILIES) - set(PROVIDER_LISTS) == {"azure", "bedrock", "vertex"}
    assert provider_list(ProviderSettings(name="a", base_url="http://a.test", dialects=("azure.chat",))) is None
    both = ProviderSettings(name="a", base_url="http://a.test", dialects=("azure", "anthropic.messages"))
    assert provider_list(both) is PROVIDER_LISTS["anthropic"]


@pytest.mark.parametrize(
    "name", ["", " ", "*", "a/*", "-a", "a b", "a\n", "a?b", "a%2Fb", "a" * 201, "ä", None, 1, ["a"], {"a": 1}]
)
def test_a_name_that_no_configuration_could_hold_is_left_out(name: object) -> None:
    answer = json.dumps({"data": [{"id": name}, 1, {"id": "good"}, {"id": "good"}, {}]}).encode()
    (found,) = read_list(answer, PROVIDER_LISTS["openai"], provider("openai"))
    assert found.name == "good"


@pytest.mark.parametrize(
    "odd", [-1, 0, 1e300, 2**70, "x", "", "9999-99-99", None, True, [], {}, "0001-01-01T00:00:00Z"]
)
def test_odd_numbers_are_not_known(odd: object) -> None:
    members = ("created", "created_at", "context_length", "max_tokens", "lifecycle", "endpoints", "capabilities")
    answer = json.dumps({"data": [{"id": "a"} | dict.fromkeys(members, odd)]}).encode()
    found = read_list(answer, PROVIDER_LISTS["openai"], provider("openai"))
    assert [(one.created, one.input_tokens_max, one.output_tokens_max) for one in found] == [(0, 0, 0)]


def test_no_list_is_longer_than_it_may_be() -> None:
    answer = json.dumps([{"id": f"m{number}"} for number in range(MODELS_MAX + 10)]).encode()
    assert len(answer) < LIST_BYTES_MAX
    assert len(read_list(answer, PROVIDER_LISTS["openai"], provider("openai"))) == MODELS_MAX


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["data", "models", "id", "name", "model", "created", "endpoints", "lifecycle", "max_tokens"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(_JSON, st.sampled_from(list(PROVIDER_LISTS)))
def test_whatever_a_provider_answers_is_read_or_refused(document: Any, family: str) -> None:
    try:
        found = read_list(json.dumps(document).encode(), PROVIDER_LISTS[family], provider(family))
    except UnreadableListError:
        return
    for spoken in (OPENAI, MISTRAL, ANTHROPIC, GEMINI, COHERE, OLLAMA):
        assert json.dumps(spoken.listed(found, {}))


# -- formats


def model(name: str, *dialects: str, **more: Any) -> ListedModel:
    return ListedModel(name=name, provider="p", dialects=dialects_of(dialects or ("openai",)), **more)


@pytest.mark.parametrize(
    ("headers", "spoken"),
    [
        ({}, OPENAI),
        ({"User-Agent": "OpenAI/Python 3.52.0", "api-key": "x"}, OPENAI),
        ({"anthropic-version": "2023-06-01", "Authorization": "x"}, ANTHROPIC),
        ({"x-api-key": "x"}, ANTHROPIC),
        ({"x-goog-api-key": "x"}, GEMINI),
        ({"User-Agent": "speakeasy-sdk/python 3.7.0 2.935.1 1.0.0 mistralai"}, MISTRAL),
        ({"User-Agent": "cohere/7.3.1"}, COHERE),
    ],
)
def test_who_asks_is_known_by_its_headers(headers: dict[str, str], spoken: Format) -> None:
    assert format_for(headers) is spoken


async def test_a_family_sees_what_it_can_ask_for(providers: Upstream) -> None:
    families = ("openai", "anthropic", "gemini", "cohere", "mistral", "ollama")
    models = {"*": {"providers": [{"provider": family} for family in families]}}
    claude = ["claude-opus-4-5-20251101", "claude-3-haiku-20240307"]
    mistral = ["codestral-latest", "mistral-small"]
    async with listing(providers, models, *families) as at:
        google, cohere = ["gemini-2.5-flash", "embedding-001"], ["command-r-plus", "embed-v4.0"]
        everything = [*OPENAI_NAMES, *claude, *google, *cohere, *mistral, "llama3.2:latest"]
        assert await names(at) == everything
        assert await names(at, GOOD | {"anthropic-version": "2023-06-01"}) == claude
        assert await names(at, GOOD | {"User-Agent": "mistralai"}) == [*OPENAI_NAMES, *mistral]
        _, document = await get(at, headers={"x-goog-api-key": "good"})
        assert [one["name"] for one in document["models"]] == ["models/gemini-2.5-flash"]
        assert (await get(at, "/v1beta/models"))[1] == document
        _, document = await get(at, headers=GOOD | {"User-Agent": "cohere/7"})
        assert [one["name"] for one in document["models"]] == ["command-r-plus"]
        _, document = await get(at, "/api/tags")
        assert [one["model"] for one in document["models"]] == ["llama3.2:latest"]
        assert (await get(at, "/v1/models/gpt-4o", {"x-api-key": "good"}))[0] == 404


@pytest.mark.parametrize(
    ("path", "headers", "error"),
    [
        ("/v1/models/x", GOOD, {"type": "invalid_request_error", "param": "model", "code": "model_not_found"}),
        ("/v1/models/x", {"x-api-key": "good"}, {"type": "not_found_error"}),
        ("/v1beta/models/x", GOOD, {"code": 404, "status": "NOT_FOUND"}),
        ("/v1/models/x", {"x-goog-api-key": "good"}, {"code": 404, "status": "NOT_FOUND"}),
        ("/v1/models", {"x-goog-api-key": "bad"}, {"code": 401, "status": "UNAUTHENTICATED"}),
        ("/v1/models?limit=x", {"x-api-key": "good"}, {"type": "invalid_request_error"}),
    ],
)
async def test_refusals_in_each_format(at: Listing, path: str, headers: dict[str, str], error: dict[str, Any]) -> None:
    status, document = await get(at, path, headers)
    assert document["error"] | error == document["error"]
    assert status == {"bad": 401}.get(next(iter(headers.values())), 400 if "?" in path else 404)
    assert status == 401 or document["error"]["message"].count("'x'" if status == 404 else "limit: ") == 1


async def test_ollama(providers: Upstream) -> None:
    async with listing(providers, {"*": {"provider": "ollama"}}, "ollama") as at:
        (tag,) = (await get(at, "/api/tags"))[1]["models"]
        assert (tag["name"], tag["modified_at"], len(tag["digest"])) == ("llama3.2:latest", "2026-05-05T00:37:44Z", 64)
        for asked in ({"model": "llama3.2:latest"}, {"name": "llama3.2"}, {"model": "llama3.2", "verbose": True}):
            status, shown = await get(at, "/api/show", body=asked)
            assert (status, shown["capabilities"]) == (200, ["completion"])
        status, refusal = await get(at, "/api/show", body={"model": "other"})
        assert status == 404
        assert "other" in refusal["error"]
        for odd in ({}, {"model": 1}, {"model": "a b"}, {"model": "*"}, {"model": "x" * 20_000}):
            status, refusal = await get(at, "/api/show", body=odd)
            assert status in (400, 413)
            assert isinstance(refusal["error"], str)
        assert set((await get(at, "/api/version"))[1]) == {"version"}


# -- pages


def pages_of(count: int, query: dict[str, str]) -> dict[str, Any]:
    models = [model(f"m{number}", "anthropic") for number in range(count)]
    return ANTHROPIC.listed(models, {name: [value] for name, value in query.items()})


@given(st.integers(0, 60), st.integers(1, 25))
def test_pages_have_every_model_once_in_both_directions(count: int, limit: int) -> None:
    everything = [f"m{number}" for number in range(count)]
    seen: list[str] = []
    page = pages_of(count, {"limit": str(limit)})
    seen += [one["id"] for one in page["data"]]
    while page["has_more"]:
        assert page["last_id"] == seen[-1]
        page = pages_of(count, {"limit": str(limit), "after_id": page["last_id"]})
        seen += [one["id"] for one in page["data"]]
    assert seen == everything
    back = everything[-1:]
    page = {"has_more": bool(back), "first_id": back[0] if back else None}
    while page["has_more"]:
        page = pages_of(count, {"limit": str(limit), "before_id": page["first_id"]})
        back = [one["id"] for one in page["data"]] + back
    assert back == everything


def test_an_empty_page() -> None:
    assert pages_of(0, {}) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize("spoken", [ANTHROPIC, GEMINI, COHERE], ids=["anthropic", "gemini", "cohere"])
def test_pages_of_each_format(spoken: Format) -> None:
    size, token, told = {
        id(ANTHROPIC): ("limit", "after_id", "last_id"),
        id(GEMINI): ("pageSize", "pageToken", "nextPageToken"),
        id(COHERE): ("page_size", "page_token", "next_page_token"),
    }[id(spoken)]
    models = [model(f"m{number}", "anthropic", "gemini", "cohere") for number in range(5)]
    first = spoken.listed(models, {size: ["3"]})
    second = spoken.listed(models, {size: ["3"], token: [first[told]]})
    both = [*first.get("data", first.get("models")), *second.get("data", second.get("models"))]
    assert [one.get("id", one.get("name")).removeprefix("models/") for one in both] == [one.name for one in models]
    assert told not in second or spoken is ANTHROPIC
    whole = spoken.listed(models, {size: ["99999"]})
    assert len(whole.get("data", whole.get("models"))) == 5
    for odd in ("0", "-1", "x", "", "1.5", "٣", "9" * 5000):
        with pytest.raises(ApiError) as refusal:
            spoken.listed(models, {size: [odd]})
        assert (refusal.value.status, refusal.value.param) == (400, size)
    with pytest.raises(ApiError) as refusal:
        spoken.listed(models, {token: ["gone"]})
    assert (refusal.value.status, refusal.value.param) == (400, token)


def test_one_cursor_at_a_time() -> None:
    paging = Paging("limit", 20, "after_id", "before_id")
    with pytest.raises(ApiError, match="before_id: cannot be combined with after_id"):
        paging.page([model("a"), model("b")], {"after_id": ["a"], "before_id": ["b"]})


async def test_a_query_of_a_thousand_parameters_is_refused(at: Listing) -> None:
    assert (await get(at, "/v1/models?" + "a=1&" * 1000))[0] == 400


def test_retired_models_are_shown_to_who_asks_for_them() -> None:
    kept = model("kept", "anthropic")
    models = [kept, replace(kept, name="old", lifecycle="deprecated"), replace(kept, name="dead", lifecycle="retired")]
    for query, seen in (
        ({}, ["kept", "old"]),
        ({"lifecycle[]": ["retired", "active"]}, ["kept", "dead"]),
        ({"lifecycle": ["deprecated"]}, ["old"]),
    ):
        assert [one["id"] for one in ANTHROPIC.listed(models, query)["data"]] == seen


def test_the_lists_of_the_tests_are_of_every_family() -> None:
    assert {path.split("/")[1] for path in LISTS} == set(PROVIDER_LISTS)

"""Usage and costs pulled by an admin key from a real server: whole, or an error that names the setting."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from proxy.foundation.secret import Secret
from proxy.reconciliation.provider_bill import anthropic as bill_anthropic
from proxy.reconciliation.provider_bill import openai as bill_openai
from proxy.reconciliation.provider_bill.bill import DAY_S, BillKind, BillSubject, ProviderBill
from proxy.reconciliation.provider_bill.file import DAYS_MAX, read_bill
from proxy.reconciliation.provider_bill.pull import LIMITS, PullError, PullLimits, admin_api_of, pull, whole_days
from proxy.settings import ProviderSettings
from tests.reconciliation.provider_bill.admin_server import (
    KEY,
    AdminServer,
    Answer,
    admin_server,
    cut_off,
    endless,
    silent,
    status,
    text,
)
from tests.reconciliation.provider_bill.bills import (
    MIDNIGHT,
    anthropic,
    cents,
    completions,
    costs,
    messages,
    openai,
    page,
)

pytestmark = pytest.mark.io

QUICK = replace(LIMITS, request_s=0.2, pull_s=5.0)
USAGE, COSTS = "organization/usage/completions", "organization/costs"
MESSAGES, REPORT = "organizations/usage_report/messages", "organizations/cost_report"
CURSOR = {**page(openai(completions())), "has_more": True, "next_page": "again"}


def provider(
    admin_url: str | None, *dialects: str, base_url: str = "http://127.0.0.1:1/v1", key: str | None = KEY
) -> ProviderSettings:
    return ProviderSettings(
        name="mine", base_url=base_url, dialects=dialects or ("openai",),
        admin_url=admin_url, admin_key=None if key is None else Secret(key),
    )  # fmt: skip


class Waits:
    """A sleep that takes no time and is recorded."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    async def __call__(self, wait_s: float) -> None:
        self.waited_s.append(wait_s)


async def pulled(
    server: AdminServer, *dialects: str, days: int = 1, limits: PullLimits = QUICK, sleep: Waits | None = None
) -> bytes:
    return await pull(
        provider(server.url, *dialects), MIDNIGHT, MIDNIGHT + days * DAY_S,
        limits=limits, unix_time=lambda: 784_111_770.0, sleep=sleep or Waits(),
    )  # fmt: skip


def bill_of(lines: bytes) -> ProviderBill:
    return read_bill(io.BytesIO(lines))


async def test_openai_is_asked_for_all_that_is_compared() -> None:
    pages = {
        USAGE: [page(openai(completions("o3"), day=day)) for day in range(3)],
        COSTS: [page(openai(costs("0.5", "o3, input")), openai(), openai(day=2))],
    }
    async with admin_server(pages=pages) as server:
        bill = bill_of(await pulled(server, days=3))
    assert [day.day for day, _ in bill.amounts(BillSubject.USAGE)] == [1, 2, 3]
    assert bill.subjects == (BillSubject.USAGE, BillSubject.COST)
    assert not bill.goes_on
    assert {path for path, _ in server.requests} == {endpoint.path for endpoint in bill_openai.ENDPOINTS}
    days = [("start_time", str(MIDNIGHT)), ("end_time", str(MIDNIGHT + 3 * DAY_S))]
    first, second, third = server.asked(USAGE)
    assert first == [
        *days, ("bucket_width", "1d"), ("limit", "31"), ("group_by", "model"), ("group_by", "service_tier")
    ]  # fmt: skip
    assert (second, third) == ([*first, ("page", "cursor=1")], [*first, ("page", "cursor=2")])
    assert server.asked(COSTS) == [[*days, ("bucket_width", "1d"), ("limit", "31"), ("group_by", "line_item")]]
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}


async def test_anthropic_is_asked_for_all_that_is_compared() -> None:
    pages = {
        MESSAGES: [page(anthropic(messages())), page(anthropic(messages(), day=1))],
        REPORT: [page(anthropic(cents("150")), anthropic(day=1))],
    }
    async with admin_server(pages=pages) as server:
        bill = bill_of(await pulled(server, "anthropic", days=2))
    assert [day.day for day, _ in bill.amounts(BillSubject.USAGE)] == [1, 2]
    assert [sums[BillKind.COST] for sums in bill.amounts(BillSubject.COST).values()] == [1.5]
    assert {path for path, _ in server.requests} == {endpoint.path for endpoint in bill_anthropic.ENDPOINTS}
    days = [("starting_at", "2026-11-01T00:00:00Z"), ("ending_at", "2026-11-03T00:00:00Z")]
    groups = ("model", "service_tier", "context_window", "inference_geo", "speed")
    asked = [*days, ("bucket_width", "1d"), ("limit", "31")]
    first = [*asked, *(("group_by[]", name) for name in groups)]
    assert server.asked(MESSAGES) == [first, [*first, ("page", "cursor=1")]]
    assert server.asked(REPORT) == [[*asked, ("group_by[]", "description")]]
    assert {headers["x-api-key"] for headers in server.headers} == {KEY}
    assert {headers["anthropic-version"] for headers in server.headers} == {"2023-06-01"}
    assert all("Authorization" not in headers for headers in server.headers)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_nothing_used_is_zero_and_not_unknown(dialect: str) -> None:
    async with admin_server() as server:
        bill = bill_of(await pulled(server, dialect, days=2))
    assert bill.subjects == (BillSubject.USAGE, BillSubject.COST)
    for subject in bill.subjects:
        assert bill.amounts(subject) == {}
        assert bill.spans(subject) == [(MIDNIGHT, MIDNIGHT + 2 * DAY_S)]


async def test_days_that_nobody_asked_for_are_not_compared() -> None:
    pages = {USAGE: [page(*(openai(completions("o3"), day=day) for day in (-1, 0, 1)))]}
    async with admin_server(pages=pages) as server:
        bill = bill_of(await pulled(server))
    assert [day.day for day, _ in bill.amounts(BillSubject.USAGE)] == [1]


async def test_a_page_is_kept_as_it_came() -> None:
    """Numbers, too: a cost with more digits than a float has."""
    raw = json.dumps(page(openai(costs(7, "o3, input"))), indent=2).replace(
        '"value": 7', '"value": 0.10000000000000000001'
    )
    async with admin_server(always=text(raw)) as server:
        lines = await pulled(server)
    assert b"0.10000000000000000001" in lines
    assert lines.count(b"\n") == len(server.requests)
    assert json.loads(lines.splitlines()[0])["page"] == json.loads(raw)


PASSING: dict[str, tuple[list[Answer], list[float]]] = {
    "429 with seconds": ([status(429, Retry_After="7")], [7]),
    "429 with a date": ([status(429, Retry_After="Sun, 06 Nov 1994 08:49:37 GMT")], [7]),
    "429 with nonsense": ([status(429, Retry_After="soon")], [1]),
    "429 at once": ([status(429, Retry_After="0")], [1]),
    "500, then fine": ([status(500)], [1]),
    "overloaded": ([status(529), status(503, Retry_After="9"), status(502), status(504)], [1, 9, 4, 8]),
    "cut off": ([cut_off], [1]),
}


@pytest.mark.parametrize(("faults", "waits_s"), PASSING.values(), ids=list(PASSING))
async def test_a_passing_fault_is_waited_for(faults: list[Answer], waits_s: list[float]) -> None:
    sleep = Waits()
    async with admin_server(pages={USAGE: [page(openai(completions("o3")))]}, faults=[*faults]) as server:
        bill = bill_of(await pulled(server, sleep=sleep))
    assert sleep.waited_s == waits_s
    assert len(server.asked(USAGE)) == len(faults) + 1
    assert bill.amounts(BillSubject.USAGE)


Always = Callable[[AdminServer], Answer]


def steadily(answer: Answer) -> Always:
    return lambda _: answer


LASTING: dict[str, tuple[Always, str, int]] = {
    "401": (steadily(status(401)), "HTTP 401: providers.mine.admin_key is not accepted", 1),
    "403": (steadily(status(403)), "HTTP 403: providers.mine.admin_key has no permission", 1),
    "404": (steadily(status(404)), "HTTP 404: check providers.mine.admin_url", 1),
    "400": (steadily(status(400)), "HTTP 400", 1),
    "a redirect": (steadily(status(302, Location="/v1/elsewhere")), "a redirect, which is not followed", 1),
    "500 for ever": (steadily(status(500)), "HTTP 500, after 5 tries", 5),
    "429 for ever": (steadily(status(429, Retry_After="3")), "HTTP 429, after 5 tries", 5),
    "429 for long": (steadily(status(429, Retry_After="3600")), "HTTP 429, to be repeated in 3600 s", 1),
    "cut off": (steadily(cut_off), "the answer was cut off, after 5 tries", 5),
    "silence": (silent, "no whole answer within 0.05 s, after 5 tries", 5),
    "HTML": (steadily(text(f" <html>{KEY}</html>", "text/html")), "the answer is HTML: check providers.mine.admin", 1),
    "broken JSON": (steadily(text('{"data": [')), "the answer is not a JSON object", 1),
    "a list": (steadily(text("[]")), "the answer is not a JSON object", 1),
    "nesting": (steadily(text("[" * 100_000)), "the answer is not a JSON object", 1),
    "no page": (steadily(text('{"object": "list"}')), "the answer is not a page", 1),
    "no has_more": (steadily(text('{"data": []}')), "the answer is not a page", 1),
    "no cursor": (steadily(text('{"data": [], "has_more": true, "next_page": null}')), "but no next_page", 1),
    "one cursor for ever": (steadily(text(json.dumps(CURSOR))), "repeats a next_page", 2),
    "a huge page": (steadily(endless), "a page of more than 1000000 bytes", 1),
}  # fmt: skip


@pytest.mark.parametrize(("always", "words", "requests"), LASTING.values(), ids=list(LASTING))
async def test_a_lasting_fault_is_said_plainly(
    always: Always, words: str, requests: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The message names the setting, and has neither the key nor a word of the answer."""
    caplog.set_level(logging.DEBUG)
    limits = replace(QUICK, request_s=0.05 if always is silent else 5.0, page_bytes=1_000_000)
    async with admin_server() as server:
        server.always = always(server)
        with pytest.raises(PullError) as refusal:
            await pulled(server, limits=limits)
        assert len(server.requests) == requests
    said = str(refusal.value)
    assert said.startswith(f"providers.mine: {USAGE}: ")
    assert words in said
    assert KEY not in f"{said}{refusal.value!r}{caplog.text}"
    assert "Incorrect" not in said


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (replace(QUICK, pages=9), "organization/usage/embeddings: more than 9 pages"),
        (replace(QUICK, pull_bytes=2_000), "organization/usage/completions: more than 2000 bytes in all"),
    ],
)
async def test_a_whole_pull_is_bounded(limits: PullLimits, words: str) -> None:
    pages = {USAGE: [page(openai(completions("o3"), day=day)) for day in range(9)]}
    async with admin_server(pages=pages) as server:
        with pytest.raises(PullError, match=words):
            await pulled(server, days=9, limits=limits)


async def test_a_whole_pull_has_a_time() -> None:
    async with admin_server() as server:
        server.always = silent(server)
        with pytest.raises(PullError, match=r"providers\.mine: the pull took longer than 0\.05 s"):
            await pulled(server, limits=replace(QUICK, request_s=60.0, pull_s=0.05))


async def test_a_fault_of_the_last_page_leaves_nothing() -> None:
    """Costs are asked for last."""
    pages = {USAGE: [page(openai(completions("o3")))], COSTS: [page(openai(costs("0.5"))), {"data": 7}]}
    async with admin_server(pages=pages) as server:
        with pytest.raises(PullError, match="organization/costs: the answer is not a page"):
            await pulled(server)


async def test_nobody_there() -> None:
    async with admin_server() as server:
        pass
    with pytest.raises(PullError, match=r"no answer \(ClientConnectorError\), after 5 tries"):
        await pulled(server)


OPENAI, ANTHROPIC, GATEWAY = "https://api.openai.com/v1", "https://api.anthropic.com/v1", "https://gateway.test/o/v1"


@pytest.mark.parametrize(
    ("base_url", "admin_url", "dialects", "host"),
    [
        (OPENAI, None, ("openai",), "api.openai.com"),
        (ANTHROPIC, None, ("openai", "anthropic"), "api.anthropic.com"),
        (GATEWAY, ANTHROPIC, ("openai",), "api.anthropic.com"),
        (GATEWAY, GATEWAY, ("openai.chat",), "api.openai.com"),
        (GATEWAY, GATEWAY, ("anthropic.messages", "gemini"), "api.anthropic.com"),
        (OPENAI, GATEWAY, ("openai",), "api.openai.com"),
    ],
)
def test_whose_api_it_is(base_url: str, admin_url: str | None, dialects: tuple[str, ...], host: str) -> None:
    api, url = admin_api_of(provider(admin_url, *dialects, base_url=base_url))
    assert (api.host, url) == (host, admin_url or base_url)


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (provider(GATEWAY, key=None), "admin_key: is missing"),
        (provider(None, base_url=GATEWAY), "admin_url: is missing: base_url is not at api.openai.com or api.anthropic"),
        (provider(GATEWAY, "openai", "anthropic"), "dialects: must have either openai or anthropic"),
        (provider(GATEWAY, "gemini"), "dialects: must have either openai or anthropic"),
    ],
)
async def test_a_setting_that_is_missing_is_named(mine: ProviderSettings, words: str) -> None:
    with pytest.raises(PullError) as refusal:
        await pull(mine, MIDNIGHT, MIDNIGHT + DAY_S)
    assert str(refusal.value).startswith(f"providers.mine.{words}")


NOON = MIDNIGHT + 4 * DAY_S + 43_200.0


@pytest.mark.parametrize(
    ("since", "until", "days"),
    [
        (None, None, (3, 4)),
        (MIDNIGHT, None, (0, 4)),
        (MIDNIGHT + 1.0, MIDNIGHT + 2.9 * DAY_S, (1, 2)),
        (None, MIDNIGHT + 2 * DAY_S, (1, 2)),
        (MIDNIGHT, NOON + 9 * DAY_S, (0, 4)),
    ],
)
def test_only_whole_days_that_are_over(since: float | None, until: float | None, days: tuple[int, int]) -> None:
    begin, end = days
    assert whole_days(since, until, NOON) == (MIDNIGHT + begin * DAY_S, MIDNIGHT + end * DAY_S)


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        (NOON - DAY_S, None, "no whole day"),
        (MIDNIGHT + DAY_S, MIDNIGHT + DAY_S, "no whole day"),
        (NOON - (DAYS_MAX + 2) * DAY_S, None, f"at most {DAYS_MAX} days"),
    ],
)
def test_no_days_and_too_many(since: float, until: float | None, words: str) -> None:
    with pytest.raises(PullError, match=words):
        whole_days(since, until, NOON)

"""/metrics: whole from the first scrape, in base units, bounded in labels, silent about people, true to the ledger."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from proxy import __version__
from proxy.billing.keys import DEFAULT_PROJECT
from proxy.billing.record import Outcome
from proxy.billing.reservation import DenialReason
from proxy.demo.script import Send, Shape, Stall
from proxy.demo.shapes import sse
from proxy.gateway.dimensions.ids import Overflow
from proxy.telemetry.metrics import OTHER, Metrics
from tests.monitoring.files import GOLDEN
from tests.support.net import ask, chat_request, connect, post_chat
from tests.support.provider import ScriptedProvider, broken_after, error_script, sse_script
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

# What a person who watches the proxy is promised, and the kind of each.
PROMISED = {
    name.removesuffix("_total"): kind
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", GOLDEN.read_text(), re.MULTILINE)
}
LABELS = {"provider", "state", "model", "outcome", "status", "code", "type", "source", "policy", "result", "le",
          "reason", "threshold", "sink", "version", "key", "project", "unit", "path", "doubt", "digest"}  # fmt: skip
DRAIN_S = 0.2
NAMED = ("tera", "silent")
ALIAS = "alias-that-is-nowhere"
PROMPT = "prompt that is nowhere"
CONTENT = sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": None}]})

TIMES = {"prefill_time": 40.0, "decode_time_arr": [10.0, 12.0]}
TIMED = sse(
    {
        "id": "c2",
        "choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4, **TIMES},
    }
)


@dataclass(frozen=True, slots=True)
class Watched:
    """A deployment through which mixed traffic has gone, and what was said of it before and after."""

    tokenweir: Tokenweir
    key: str
    first: dict[str, Metric]
    last: dict[str, Metric]
    text: str
    entries: list[dict[str, Any]]


def scrape(tokenweir: Tokenweir) -> str:
    with urlopen(f"{tokenweir.url}/metrics", timeout=10) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(response.read().decode("utf-8"))


def families(text: str) -> dict[str, Metric]:
    """The families of an exposition by name; each stands there once."""
    parsed = list(text_string_to_metric_families(text))
    assert len({family.name for family in parsed}) == len(parsed)
    return {family.name: family for family in parsed}


def total(found: dict[str, Metric], name: str, suffix: str = "_total", **labels: str) -> float:
    """The sum of a family's samples with these labels."""
    samples = found[name].samples
    return sum(
        one.value
        for one in samples
        if one.name == name + suffix and all(one.labels[label] == value for label, value in labels.items())
    )


def gauge(found: dict[str, Metric], name: str) -> float:
    """The one value of a gauge."""
    (sample,) = found[name].samples
    return float(sample.value)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider) -> Iterator[Watched]:
    """Mixed traffic: served, left, broken off, refused above and below, streamed and not, named models and not."""
    provider_process.reset()
    priced = {"provider": "scripted", "price": PRICE, "cost": COST}
    tokenweir = Tokenweir(
        tmp_path_factory.mktemp("watched"),
        providers={
            "scripted": provider_section(provider_process.base_url, on_client_disconnect="cancel"),
            "draining": provider_section(
                provider_process.base_url, on_client_disconnect="drain", drain={"seconds": DRAIN_S}
            ),
        },
        models={**dict.fromkeys(NAMED, priced), "*": {"provider": "scripted"}, "drain/*": {"provider": "draining"}},
        metrics={"keys_max": 1, "projects_max": 1},
        dimensions={"new_values_per_key_hour": 0},
    )
    tokenweir.start()
    try:
        first = families(scrape(tokenweir))
        key = tokenweir.key(ALIAS)
        count = asyncio.run(_traffic(tokenweir, key, provider_process))
        entries = tokenweir.entries(count)
        text = _settled(tokenweir)
        yield Watched(tokenweir, key, first, families(text), text, entries)
    finally:
        tokenweir.close()


async def _traffic(tokenweir: Tokenweir, key: str, provider: ScriptedProvider) -> int:
    """Send it; how many exchanges it was."""
    provider.script("silent", Shape("electron", reports_usage=False))
    provider.script("breaks", broken_after([CONTENT], "fin"))
    provider.script("refuses", error_script(400, "no"))
    provider.script("waits", (Send(CONTENT), Stall()))
    provider.script("timed", sse_script([TIMED]))
    asked = ["timed", "tera", "tera", "tensorloop", "silent", "electron", "breaks", "refuses"]
    asked += ["unheard-of-1", "unheard-of-2"]
    messages = [{"role": "user", "content": PROMPT}]
    for model in asked:
        for stream in (True, False):
            await post_chat(tokenweir.url, ask(model, stream=stream) | {"messages": messages}, key=key)
    async with await connect(tokenweir.url) as client:
        await client.send(chat_request(ask("waits"), key=key))
        await client.read_body(await client.read_head(), until=CONTENT)
        assert gauge(families(await asyncio.to_thread(scrape, tokenweir)), "tokenweir_exchanges_in_flight") == 1
    async with await connect(tokenweir.url) as client:
        await client.send(chat_request(ask("drain/waits"), key=key))
        await client.read_body(await client.read_head(), until=CONTENT)
    await post_chat(tokenweir.url, ask("tera", user="alice"), key=tokenweir.key("second"))
    await post_chat(tokenweir.url, ask("tera"), key="tw-nobody")
    await post_chat(tokenweir.url, b"{", key=key)
    return 2 * len(asked) + 3


# What is 0 once everything is in the ledger, and the journal knows it.
AT_REST = (
    "unsettled_exchanges", "journal_pending_records", "journal_oldest_pending_age_seconds", "exchanges_in_flight",
    "journal_unwritten_records",
)  # fmt: skip


def _settled(tokenweir: Tokenweir) -> str:
    """The exposition once nothing is unsettled, and every key's project was looked up."""
    for _ in range(500):
        found = families(text := scrape(tokenweir))
        by_key, by_project = (total(found, f"tokenweir_{level}_tokens") for level in ("key", "project"))
        if by_key == by_project and not any(gauge(found, f"tokenweir_{name}") for name in AT_REST):
            return text
    raise AssertionError("something stays unsettled")


def test_every_promised_series_is_there_from_the_first_scrape(watched: Watched) -> None:
    for found in (watched.first, watched.last):
        assert {name: found[name].type for name in PROMISED if name in found} == PROMISED


def test_nothing_is_there_that_is_not_promised(watched: Watched) -> None:
    ours = {name for name in watched.last if name.startswith("tokenweir_")}
    assert ours == set(PROMISED)
    assert all(name.startswith(("process_", "python_")) for name in set(watched.last) - ours)


def test_after_traffic_every_counter_that_can_have_counted_has_samples(watched: Watched) -> None:
    cannot = {"ledger_write_failures", "journal_damage", "journal_replayed", "queue_records"}
    cannot |= {"reconcile_differences"}  # no audit within the first minutes
    cannot |= {"failed_attempts"}  # there is one provider
    cannot |= {"unread_usage", "unpriced_units", "contradicted_usage"}  # which says nothing unknown
    cannot |= {"budget_alerts", "trace_spans"}  # nothing is limited or traced here
    cannot |= {"later_usage", "later_estimate_error_ratio"}  # nor asked for afterwards
    for name in PROMISED.keys() - {f"tokenweir_{one}" for one in cannot}:
        assert watched.last[name].samples or name.startswith("tokenweir_sink_"), name  # nothing is pushed to others


def test_every_family_explains_itself(watched: Watched) -> None:
    for name in PROMISED:
        text = watched.last[name].documentation
        assert len(text.split()) >= 4, name
        assert text.split(" [")[0].rstrip().endswith("."), f"{name}: {text}"


def test_units_are_base_units_and_in_the_name(watched: Watched) -> None:
    for name, kind in PROMISED.items():
        assert not re.search(r"(_ms|_milliseconds|_micros|_cents|_nusd|_kb|_mb|_percent|_minutes)(_|$)", name)
        assert kind != "histogram" or name.endswith(("_seconds", "_ratio")), name
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_created")), name
    lines = [line for line in watched.text.splitlines() if line and not line.startswith("#")]
    for line in lines:
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert not name.endswith("_created")
    counters = {name for name, kind in PROMISED.items() if kind == "counter"}
    assert {line.split()[2] for line in watched.text.splitlines() if line.endswith(" counter")} >= {
        f"{name}_total" for name in counters
    }


def test_labels_are_few_and_their_values_are_known(watched: Watched) -> None:
    allowed = {
        "provider": {"scripted", "draining"},
        "model": {*NAMED, OTHER},
        "outcome": set(Outcome),
        "type": {"input", "cached_input", "output", "reasoning_output"},
        "source": {"reported", "estimated"},
        "policy": {"cancel", "drain"},
        "version": {__version__},
        "project": {DEFAULT_PROJECT},
        "state": {"closed", "open", "half_open"},
        "result": {"inserted", "repeated", "conflict", "dead_letter"},
        "status": {"400", "401"},
        "reason": {*DenialReason, *Overflow},
        "code": {"invalid_json", "invalid_api_key"},
    }
    for name in PROMISED:
        for sample in watched.last[name].samples:
            assert set(sample.labels) <= LABELS
            for label, value in sample.labels.items():
                assert label in ("le", "key", "digest") or value in allowed[label], f"{sample.name} {label}={value!r}"
    assert total(watched.last, "tokenweir_exchanges", model=OTHER) > 0


def test_no_person_and_no_word_of_anybody_is_there(watched: Watched) -> None:
    keys = {entry["exchange_id"] for entry in watched.entries}
    words = (watched.key, ALIAS, PROMPT, "alice", "unheard-of", "127.0.0.1", watched.tokenweir.PROVIDER_KEY)
    for secret in (*words, *keys):
        assert secret not in watched.text


def test_keys_are_labels_only_where_it_is_asked_for_and_only_so_many(watched: Watched) -> None:
    first = watched.entries[0]["key_id"]
    named = {s.labels["key"] for f in watched.last.values() for s in f.samples if "key" in s.labels}
    assert named == {first, OTHER}
    for key in named:
        mine = [entry for entry in watched.entries if (entry["key_id"] == first) == (key == first)]
        tokens = sum(entry["completion_tokens"] or 0 for entry in mine)
        assert total(watched.last, "tokenweir_key_tokens", key=key, type="output") == tokens
        charge = sum(float(entry["charge_usd"] or 0) for entry in mine)
        assert total(watched.last, "tokenweir_key_charge_usd", key=key) == pytest.approx(charge, abs=1e-12)


def test_what_keys_use_their_project_uses(watched: Watched) -> None:
    assert {s.labels["project"] for s in watched.last["tokenweir_project_charge_usd"].samples} == {DEFAULT_PROJECT}
    for name, labels in (("tokens", {"type": "output"}), ("tokens", {"type": "input"}), ("charge_usd", {})):
        of_keys = total(watched.last, f"tokenweir_key_{name}", **labels)
        assert of_keys > 0
        assert total(watched.last, f"tokenweir_project_{name}", **labels) == pytest.approx(of_keys, abs=1e-12)


def test_exchanges_are_those_of_the_ledger(watched: Watched) -> None:
    by_outcome = Counter(entry["outcome"] for entry in watched.entries)
    assert set(by_outcome) >= {"served", "client_left", "upstream_failed", "refused_upstream"}
    counted = Counter({outcome: total(watched.last, "tokenweir_exchanges", outcome=outcome) for outcome in by_outcome})
    assert counted == by_outcome
    assert total(watched.last, "tokenweir_exchanges") == len(watched.entries)
    assert total(watched.last, "tokenweir_ledger_entries", result="inserted") == len(watched.entries)
    assert total(watched.last, "tokenweir_exchange_duration_seconds", "_count") == len(watched.entries)
    assert total(watched.last, "tokenweir_client_disconnects") == by_outcome["client_left"] == 2
    assert total(watched.last, "tokenweir_client_disconnects", policy="drain") == 1
    assert total(watched.last, "tokenweir_provider_drain_seconds", "_count", provider="draining") == 1
    assert DRAIN_S <= total(watched.last, "tokenweir_provider_drain_seconds", "_sum") < 10


@pytest.mark.parametrize("model", [*NAMED, OTHER])
def test_tokens_and_money_are_those_of_the_ledger(model: str, watched: Watched) -> None:
    mine = [e for e in watched.entries if (e["model"] if e["model"] in NAMED else OTHER) == model]
    assert mine
    kinds = {"input": "prompt", "cached_input": "cached", "output": "completion", "reasoning_output": "reasoning"}
    for kind, column in kinds.items():
        for source in ("reported", "estimated"):
            tokens = sum(e[f"{column}_tokens"] or 0 for e in mine if e["usage_source"] == source)
            assert total(watched.last, "tokenweir_tokens", model=model, type=kind, source=source) == tokens
    for money in ("cost", "charge"):
        amount = sum(float(entry[f"{money}_usd"] or 0) for entry in mine)
        assert total(watched.last, f"tokenweir_{money}_usd", model=model) == pytest.approx(amount, abs=1e-12)
    unpriced = sum(entry["charge_usd"] is None for entry in mine)
    assert total(watched.last, "tokenweir_unpriced", model=model) == unpriced
    assert (unpriced > 0) is (model == OTHER), "what is named has a price"
    assert amount > 0 or model == OTHER


def test_estimates_are_counted_where_they_were_made(watched: Watched) -> None:
    estimated = [entry for entry in watched.entries if entry["usage_source"] == "estimated"]
    assert estimated
    assert total(watched.last, "tokenweir_usage_missing") == len(estimated)
    assert total(watched.last, "tokenweir_estimate_error_ratio", "_count") > 0


def test_refusals_are_counted_and_are_no_exchanges(watched: Watched) -> None:
    assert total(watched.last, "tokenweir_refusals", status="401", code="invalid_api_key") == 1
    assert total(watched.last, "tokenweir_refusals", status="400", code="invalid_json") == 1
    assert total(watched.last, "tokenweir_refusals") == 2


def test_times_are_plausible(watched: Watched) -> None:
    streams = [e for e in watched.entries if e["streamed"] and e["first_token_ms"] is not None]
    name = "tokenweir_time_to_first_token_seconds"
    assert total(watched.last, name, "_count") == len(streams)
    seconds = sum(entry["first_token_ms"] for entry in streams) / 1000
    assert total(watched.last, name, "_sum") == pytest.approx(seconds, rel=1e-6)
    assert total(watched.last, "tokenweir_relay_overhead_seconds", "_count") == len(watched.entries)
    assert total(watched.last, "tokenweir_inter_event_seconds", "_count") > len(streams)
    assert total(watched.last, "tokenweir_ledger_write_seconds", "_count") > 0


@pytest.mark.parametrize("name", sorted(name for name, kind in PROMISED.items() if kind == "histogram"))
def test_histograms_are_cumulative_and_whole(name: str, watched: Watched) -> None:
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for sample in watched.last[name].samples:
        if sample.name == f"{name}_bucket":
            key = tuple(sorted(pair for pair in sample.labels.items() if pair[0] != "le"))
            series.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
    assert series or name == "tokenweir_later_estimate_error_ratio", "nothing is asked for afterwards here"
    for key, buckets in series.items():
        counts = [count for _, count in sorted(buckets)]
        assert sorted(counts) == counts
        assert max(bound for bound, _ in buckets) == float("inf")
        assert counts[-1] == total(watched.last, name, "_count", **dict(key))


def test_names_that_clients_invent_do_not_become_series() -> None:
    metrics = Metrics(["known"])
    assert metrics.label("known") == "known"
    assert {metrics.label(f"invented-{number}") for number in range(100)} == {OTHER}
    assert metrics.label("*") == OTHER

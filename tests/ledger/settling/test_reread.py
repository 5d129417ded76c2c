"""What a later version knows of a reported usage is booked as an adjustment: history is healed, and only once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine

from proxy.billing.correction import CorrectionRequest
from proxy.billing.entries import LedgerEntry
from proxy.billing.pricing.prices import configured
from proxy.billing.record import Price, Rates
from proxy.billing.reread import read_again
from proxy.billing.settlement import entry
from proxy.ledger.settling.corrections import Corrections
from proxy.metering.dialects import DIALECTS
from proxy.metering.usage import Usage, served_later
from tests.ledger.entries import stored
from tests.ledger.priced_entries import a_real_record, a_real_store, settle, wrong
from tests.metering.corpus.corpus import CORPUS

pytestmark = pytest.mark.io

MILLION = 10**6
LIST = configured(
    Rates(2 * MILLION, MILLION, 8 * MILLION, image_output=40 * MILLION, searches=10**9),
    multipliers={"speed:fast": "6"},
)
EVER = {"since": 0.0, "until": 2e9}


def an_old_entry(endpoint: str, used: Usage, usage: dict[str, Any], **details: Any) -> LedgerEntry:
    """As a version made it that read `used` of this usage."""
    record = a_real_record(price=LIST, cost=None, usage=used)
    opened = replace(record.opened, endpoint=endpoint)
    return entry(replace(record, opened=opened, details={**record.details, "usage": usage, **details}))


IMAGES = {"tool_usage.image_gen.input_tokens": 31, "tool_usage.image_gen.output_tokens": 6_993}
RESPONSE = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
STEPS = [
    {"type": "message", "input_tokens": 100, "output_tokens": 4},
    {"type": "advisor_message", "model": "opus", "input_tokens": 70, "output_tokens": 9},
    {"type": "message", "input_tokens": 130, "output_tokens": 6},
]
CHAT = {"prompt_tokens": 10_000, "completion_tokens": 50, "total_tokens": 10_050}
CHAT_COUNTED = Usage(10_000, None, 50, None, 10_050)
SAME = Usage(100, None, 10, None, 110)
ROWS: dict[str, tuple[LedgerEntry, int]] = {
    "images of a tool": (
        an_old_entry("/v1/responses", SAME, RESPONSE, beside_usage=IMAGES, unread=sorted(IMAGES)),
        31 * 2 + 6_993 * 40,
    ),
    "an advisor, and later steps": (
        an_old_entry(
            "/v1/messages", SAME, {"input_tokens": 100, "output_tokens": 10, "iterations": STEPS}, unread=["x"]
        ),
        130 * 2 + 70 * 2 + 9 * 8,
    ),
    "a speed": (
        an_old_entry("/v1/messages", SAME, {"input_tokens": 100, "output_tokens": 10, "speed": "fast"}),
        5 * (100 * 2 + 10 * 8),
    ),
    "a count of searches": (
        an_old_entry(
            "/v1/messages", SAME,
            {"input_tokens": 100, "output_tokens": 10, "server_tool_use": {"web_search_requests": 3}},
        ),
        3 * MILLION,
    ),
    "what was cached, by Anthropic's name in chat": (
        an_old_entry("/v1/chat/completions", CHAT_COUNTED, CHAT | {"cache_read_input_tokens": 8_000}), -8_000,
    ),
    "what was cached, by another name than a zero": (
        an_old_entry(
            "/v1/chat/completions", CHAT_COUNTED,
            CHAT | {"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 4_096},
        ),
        -4_096,
    ),
    "a prompt without what was cached": (
        an_old_entry(
            "/v1/chat/completions", Usage(100, None, 50, None, 10_050),
            CHAT | {"prompt_tokens": 100, "cache_read_input_tokens": 9_900},
            flags=["total_mismatch"],
        ),
        9_900,
    ),
    "a prompt twice": (
        an_old_entry(
            "/v1/messages", Usage(7_206, 3_604, 878, None, 8_084),
            {"input_tokens": 3_602, "cache_read_input_tokens": 3_604, "output_tokens": 878},
        ),
        -3_602 * 2,
    ),
    "a prompt beside what was cached": (
        an_old_entry(
            "/v1/messages", Usage(5_604, 3_604, 878, None, 6_482),
            {"input_tokens": 2_000, "cache_read_input_tokens": 3_604, "output_tokens": 878},
        ),
        0,
    ),
    "tokens of images": (
        an_old_entry(
            "/v1/images/generations", Usage(10, None, 6_240, None, 6_250),
            {"input_tokens": 10, "output_tokens": 6_240, "total_tokens": 6_250},
        ),
        6_240 * 32,
    ),
    "nothing new": (an_old_entry("/v1/responses", SAME, RESPONSE), 0),
    "an endpoint that nobody knows": (an_old_entry("/v1/unheard-of", SAME, {"input_tokens": 7}), 0),
    "a usage that is none": (an_old_entry("/v1/responses", SAME, {"input_tokens": "many"}), 0),
}  # fmt: skip


def lists(_: LedgerEntry, model: str | None) -> tuple[Price | None, Price | None]:
    return LIST, None


@pytest.mark.parametrize("name", ROWS)
def test_a_fact_that_is_taught_after_the_fact_is_booked_once(engine: Engine, name: str) -> None:
    line, expected = ROWS[name]
    settle(engine, line)
    corrections = Corrections(engine, a_real_store(engine))
    assert corrections.rerate("tera-large", lists, **EVER).total.charge_nusd == 0, "only if it is asked for"
    done = corrections.rerate("tera-large", lists, reread=True, **EVER)
    assert done.total.charge_nusd == expected
    assert wrong(engine) == {}
    assert corrections.rerate("tera-large", lists, reread=True, **EVER).total.adjusted == 0
    assert {one.usage_source for one in stored(engine)} == {"reported"}
    dearer = replace(LIST, version="dearer", tiers=(replace(LIST.tiers[0], output=9 * MILLION),))
    corrections.rerate("tera-large", lambda *_: (dearer, None), **EVER)
    corrections.rerate("tera-large", lists, **EVER)
    assert wrong(engine) == {}
    charged = sum(one.charge_nusd or 0 for one in stored(engine))
    assert charged == (line.charge_nusd or 0) + expected, "what was read stays"


def test_what_an_operator_counted_stays(engine: Engine) -> None:
    line, _ = ROWS["a count of searches"]
    settle(engine, line)
    corrections = Corrections(engine, a_real_store(engine))
    corrections.adjust(line.exchange_id, CorrectionRequest(searches=1), "one was enough")
    assert corrections.rerate("tera-large", lists, reread=True, **EVER).total.adjusted == 0


@pytest.mark.skipif(not CORPUS.exists(), reason="the recorded corpus ../shared/corpus is not here")
def test_recorded_usages_are_read_again_as_they_were_read() -> None:
    """Of every recorded answer that is no stream, by its dialect: nothing changes where nothing is new."""
    dialects = {dialect.name: dialect for dialect in DIALECTS}
    read: Counter[str] = Counter()
    for text in (CORPUS / "open.jsonl").read_bytes().splitlines():
        record = json.loads(text)
        dialect = dialects.get(str(record["dialect"]).replace("google", "gemini"))
        if dialect is None or record["streamed"]:
            continue
        meter = dialect.plain_meter()
        meter.feed(record["body"].encode())
        metered = meter.close()
        if metered.usage is None or metered.usage_raw is None:
            continue
        line = an_old_entry(
            dialect.endpoint, metered.usage, metered.usage_raw,
            beside_usage=metered.unknown_usage_fields.values, flags=list(metered.flags),
        )  # fmt: skip
        again = read_again(line)
        if again is None:  # made images are counted in the answer itself
            assert metered.usage.in_other_units, record["id"]
            continue
        assert again.usage.filled_from(metered.usage) == metered.usage, record["id"]
        assert served_later(metered.served_as, again.served_as) == metered.served_as, record["id"]
        read[dialect.name.partition(".")[0]] += 1
    assert read.total() > 200
    assert read.keys() >= {"openai", "anthropic", "gemini", "cohere", "ollama"}

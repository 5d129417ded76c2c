"""A console with a month of use behind it: every way in which an exchange can end, corrections, budgets, streams that
run. What its page is looked at with, by tests and by eye."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from msgspec.structs import replace

from proxy.billing.correction import CorrectionRequest, corrected, exchange_totals
from proxy.billing.entries import LedgerEntry
from proxy.billing.keys import DEFAULT_PROJECT
from proxy.billing.limits import Limits, credit_counter_id
from proxy.billing.record import Attempt, BillableParts, Outcome
from proxy.billing.reservation import CounterState
from proxy.billing.settlement import entry
from proxy.gateway.exchange.running import ExchangeSnapshot
from proxy.ledger.accounts.account_store import AccountStore
from proxy.metering.usage import Reading, Usage, UsageSource
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import id_from
from tests.console.stand import Stand
from tests.ledger.priced_entries import a_real_record, settle

USD = 10**9
DAYS = 30
KEYS = {
    "key-search": ("search", 5),
    "key-support": ("support-bot-production", 40),
    "key-batch": ("nightly batch", None),
}
PROJECTS = {"key-support": "proj_web", "key-batch": "proj_batch"}
MODELS = ("tera-large", "tera-small", "siliconstorm/deepseek-v3-thinking-with-a-long-name")
EVIDENCE = {"text_events": 148, "chars_latin": 811, "blanks": 139, "marks": 24}


def furnish(stand: Stand) -> dict[str, str]:
    """Key → its secret."""
    organizations(stand)
    secrets = {
        key_id: stand.key(
            key_id, alias=alias, limits=Limits(budget_nusd=None if usd is None else usd * USD, rpm=600),
            project_id=PROJECTS.get(key_id, DEFAULT_PROJECT),
        )
        for key_id, (alias, usd) in KEYS.items()
    }  # fmt: skip
    acts(stand)
    settle(stand.engine, *month(), *corrections(), node=None)
    spent = zip(KEYS, (3_912_345_678, 41 * USD, 0), strict=True)
    stand.budgets.gates = [
        CounterState(key_id, time.time() - 9 * DAY_S, nusd, USD // 3, 2, 0) for key_id, nusd in spent
    ]
    stand.budgets.gates += [CounterState(credit_counter_id("key-batch"), 0.0, -7 * USD, USD // 2, 1, 0)]
    stand.inside.streams = [running(number) for number in range(4)]
    stand.inside.remote_coverage = "partial"
    stand.inside.streams += [
        running(4, node="5b1e0c77a2d94f03", heartbeat_age_s=1.5),
        running(5, node="c0ffee", heartbeat_age_s=14.0),
    ]
    return secrets


def organizations(stand: Stand) -> None:
    """One with two projects, one of them with a long name."""
    accounts = AccountStore(stand.engine, clock=time.time)
    accounts.create_organization(account_id="org_acme", name="acme", limits=Limits(budget_nusd=500 * USD))
    for account_id, name in (("proj_web", "web"), ("proj_batch", "nightly-evaluation-of-everything")):
        accounts.create_project(
            account_id=account_id, name=name, organization="org_acme", limits=Limits(prepaid=name == "web", parallel=40)
        )


def acts(stand: Stand) -> None:
    """What an operator does on such a day, and what was refused."""
    stand.post(
        "/key/update", {"key": "key-batch", "prepaid": True, "on_exhausted": "cut", "on_store_outage": "fail_open"}
    )
    stand.post("/credit/add", {"key": "key-batch", "usd": 25, "reason": "invoice 2026-118, by transfer"})
    stand.post("/account/update", {"account": "proj_web", "rpm_limit": 900, "budget_duration": "30d"})
    stand("POST", "/credit/add", {"account": "nobody", "usd": 3, "reason": "a card"})


def month() -> list[LedgerEntry]:
    """Some for every day, more on weekdays, the same each time."""
    chance = Random(7)
    today = time.time() // DAY_S * DAY_S
    found = []
    for back in range(DAYS - 1, -1, -1):
        begin = today - back * DAY_S
        for number in range(chance.randint(2, 9)):
            at = min(begin + chance.random() * DAY_S, time.time() - 120 - number)
            found.append(one(len(found), at, chance))
    return found


def one(number: int, at: float, chance: Random) -> LedgerEntry:
    key_id = chance.choice(list(KEYS))
    prompt, output = chance.randint(500, 90_000), chance.randint(20, 9_000)
    record = a_real_record(
        number, key=key_id, model=chance.choice(MODELS), started_at=at, usage=Usage(prompt, prompt // 3, output)
    )
    opened = replace(
        record.opened, exchange_id=exchange_id(number, at), key_alias=KEYS[key_id][0], reserved_nusd=12_345_678,
        attempts=(Attempt("tensorloop", "large-v1", "answered 503", 503, at, 81.5),) if number % 9 == 4 else (),
    )  # fmt: skip
    record = replace(record, opened=opened, first_token_ms=chance.random() * 900, duration_ms=900 + output * 4.2)
    if number % 5 == 3:
        record = replace(
            record, outcome=Outcome.CLIENT_LEFT, details={"evidence": EVIDENCE},
            reading=replace(record.reading, source=UsageSource.ESTIMATED, estimator="estimate-3", expected_error=0.041),
        )  # fmt: skip
    if number % 31 == 7:
        nothing = Reading(Usage(), UsageSource.NONE)
        record = replace(record, outcome=Outcome.UPSTREAM_FAILED, reading=nothing, bills=BillableParts.NOTHING)
    return entry(record)


def exchange_id(number: int, at: float) -> str:
    """In the order of time."""
    return f"{id_from(at)}7{number:03x}-8000-{number:012x}"


def corrections() -> list[LedgerEntry]:
    """One exchange of yesterday, and the goodwill that followed."""
    first = one(4_000, time.time() - DAY_S, Random(1))
    less = corrected(
        exchange_totals([first]),
        CorrectionRequest(charge_nusd=5_000),
        "goodwill: the answer was cut by our own deployment",
    )
    assert less is not None
    return [first, less]


def running(number: int, **differences: Any) -> ExchangeSnapshot:
    key_id = list(KEYS)[number % 3]
    began = time.time() - 3.7 * (number + 1)
    stream = ExchangeSnapshot(
        exchange_id=exchange_id(3_000 + number, began), key_id=key_id, key_alias=KEYS[key_id][0], provider="tera",
        model=MODELS[number % 3], endpoint="/v1/chat/completions", streamed=True, started_at=began, state="streaming",
        events=31, bytes=5_843, prompt_tokens=1_204, completion_tokens=37 * (number + 1), usage_source="estimated",
        charge_nusd=171_690 * (number + 1), cost_nusd=146_130 * (number + 1),
    )  # fmt: skip
    return replace(stream, **differences)

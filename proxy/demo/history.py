"""Sixty days of use of two customers, for `tokenweir demo --full`: a ledger in which questions have known answers.

Invariants: every amount follows from the usage and the price list of a record, by the code that settles real records.
Two runs differ only by their dates. `Answers` are computed from the records, not by the reports that they check.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from proxy.billing.correction import CorrectionRequest
from proxy.billing.limits import Limits
from proxy.billing.money import Nusd, nusd_from_usd, usd_text
from proxy.billing.period import Month, month_from
from proxy.billing.pricing.prices import configured
from proxy.billing.record import BillableParts, Opened, Outcome, Price, Rates, UsageRecord
from proxy.billing.settlement import content_hash, entry
from proxy.foundation.ids import exchange_id
from proxy.keys.secrets import digest, hint, new_secret
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import Actor, AuditLog
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.periods.closing import close, issue_all
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.settling import Arrival
from proxy.ledger.settling.store import LedgerStore
from proxy.metering.usage import Reading, Usage, UsageSource
from proxy.runtime.machine.configured_prices import ACTION, changes, prices_in
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load

DAY_S = 86_400
DAYS = 60
# The second half has more requests of Contoso's chat, at a higher price.
TURN_DAY = 30
SEED = 20
FOUND_RESPONSE = "chatcmpl-Contoso77of154"
"""the response that a customer asks about: its client left after 77 of 154 tokens"""
OWNER, SUPPORT = Actor("ann@example.com", "cli", "office"), Actor("ben@example.com", "api", "10.0.0.7")


class _Model(NamedTuple):
    """Prices: USD per million input, cached and output tokens; empty: unknown."""

    provider: str
    price: str
    cost: str
    price_before: str = ""
    """the price in the first half; empty: the same"""


MODELS: Mapping[str, _Model] = {
    "tera-large": _Model("tera", "3.6 0.9 18", "2.5 0.6 12", "3 0.75 15"),
    "tera-small": _Model("tera", "0.3 0.15 1.2", "0.25 0.12 1"),
    "tensorloop-chat": _Model("tensorloop", "0.2 0.1 0.8", "0.15 0.07 0.6"),
    "siliconstorm-deepseek": _Model("siliconstorm", "0.4 0.2 1.6", "0.3 0.15 1.2"),
    "electron-mini": _Model("electron", "0.1 0.05 0.4", ""),
    "electron-embed": _Model("electron", "0.05 0.05 0", "0.04 0.04 0"),
    "lab/alpha": _Model("electron", "", ""),
}
_RATES = ("input", "cached_input", "output")


def _price(text: str) -> Price | None:
    if not text:
        return None
    usd = dict(zip(_RATES, map(nusd_from_usd, text.split()), strict=True))
    return configured(Rates(**usd))


_STATEMENT = """\
statement:
  seller: Weir Demo Ltd
  address: "1 Weir Lane\\nBath"
  contact: billing@weir.example
  due_days: 14
  tax: {label: VAT, percent: 20}
  customers:
    Contoso Health: {legal_name: Contoso Health Ltd, address: "1 Station Road\\nCambridge"}
    Northwind Traders: {legal_name: Northwind Traders Ltd, address: "7 Quay Street\\nBristol"}
"""


def configuration() -> str:
    """The lines of `models` for these models, and the seller on statements. A model without a price is not served any
    more."""
    models = "".join(
        f"  {name}: {{provider: {model.provider}, {_setting('price', model.price)}{_setting('cost', model.cost)}}}\n"
        for name, model in MODELS.items()
        if model.price
    )
    return models + _STATEMENT


def _setting(name: str, text: str) -> str:
    rates = ", ".join(f"{rate}: {usd}" for rate, usd in zip(_RATES, text.split(), strict=False))
    return f"{name}: {{{rates}}}, " if text else ""


class _Service(NamedTuple):
    """What one key is used for, with the mean of its requests a day in the first and the second half."""

    alias: str
    model: str
    before: float
    after: float
    prompt_tokens: int
    completion_tokens: int


PROJECTS: Mapping[str, tuple[str, Sequence[_Service]]] = {
    "Patient chat": ("Contoso Health", (
        _Service("chat-web", "tera-large", 3.6, 11.7, 24_000, 1_140),
        _Service("chat-triage", "tera-small", 6, 6, 11_000, 720),
        _Service("chat-search", "electron-embed", 3, 3, 7_000, 0),
    )),
    "Back office": ("Contoso Health", (
        _Service("coding-assistant", "tensorloop-chat", 5, 5, 90_000, 2_100),
        _Service("letters", "electron-mini", 4, 4, 15_000, 1_800),
        _Service("new-model-trial", "lab/alpha", 0.4, 0.5, 8_000, 900),
    )),
    "Shop assistant": ("Northwind Traders", (
        _Service("shop-chat", "siliconstorm-deepseek", 5, 5, 18_000, 1_260),
        _Service("shop-summaries", "tera-small", 4, 4, 50_000, 600),
    )),
    "Evaluation": ("Northwind Traders", (_Service("nightly-runs", "tensorloop-chat", 3, 3, 30_000, 1_500),)),
}  # fmt: skip
"""project → organization and services"""
IDLE_KEYS = 8
"""further keys of each project that are used once, as a team's are"""
FAILING, OUTAGE_DAYS = "siliconstorm", (55, 58)
"""the provider that fails, and the days"""
NEARLY_SPENT = {"chat-triage": 94, "shop-chat": 97, "nightly-runs": 91}
"""alias → the part of its lifetime budget that is spent, in percent"""
END_USERS = tuple(f"patient-{number:04}" for number in range(1, 13))


class Change(NamedTuple):
    """Why a charge differs between the two halves, in nUSD."""

    before: int
    after: int
    price: int
    """the charge of the requests of the second half, less their charge at the prices of the first half"""

    @property
    def volume_and_mix(self) -> int:
        """The rest."""
        return self.after - self.before - self.price


@dataclass(frozen=True, slots=True)
class Answers:
    """The correct answers to the questions of the demo."""

    contoso: Change
    found_exchange: str
    """the exchange with the response FOUND_RESPONSE"""
    nearly_spent: Mapping[str, int]
    repriced: str
    """the model whose price OWNER has changed"""
    failing: tuple[str, int]
    """the provider that fails, and how many requests it failed"""
    month: Month
    """the month whose statements are closed"""
    month_nusd: int
    """the charge of Contoso in that month"""


def write_history(config: Path, environment: Mapping[str, str]) -> Answers:
    """Write the ledger that this configuration names. Raises SettingsError, LedgerUnavailable."""
    settings = load(config, environment)
    settings.data_dir.mkdir(mode=0o700, exist_ok=True)
    stores = LedgerStores.open(settings)
    try:
        return History(stores, time.time()).write()
    finally:
        stores.close()


def answers_text(answers: Answers) -> Iterator[str]:
    """Each question, and below it the answer."""
    contoso, (provider, requests) = answers.contoso, answers.failing
    was, now, price = usd_text(contoso.before), usd_text(contoso.after), usd_text(contoso.price)
    spent = ", ".join(f"{alias} {percent} %" for alias, percent in answers.nearly_spent.items())
    questions = {
        "Why does Contoso pay more in these 30 days than in the 30 days before?": f"{was} → {now} USD: "
        f"price +{price}, volume and mix +{usd_text(contoso.volume_and_mix)}",
        f"Where is response {FOUND_RESPONSE}?": f"{answers.found_exchange}: its client left after 77 of 154 tokens",
        "Which keys are nearly spent?": spent,
        f"Who changed the price of {answers.repriced}?": OWNER.name,
        "Which provider fails?": f"{provider}: {requests} requests failed",
        f"What is on Contoso's statement of {answers.month}?": f"{usd_text(answers.month_nusd)} USD",
    }
    for question, answer in questions.items():
        yield question
        yield f"   {answer}"


class History:
    """Writes the history into the empty ledger of a new deployment."""

    def __init__(self, stores: LedgerStores, now: float) -> None:
        """`now`: Unix seconds."""
        self._stores, self._engine, self._now = stores, stores.engine, now
        self._today = now // DAY_S * DAY_S
        self._chance = Random(SEED)
        self._records: list[UsageRecord] = []
        self._project_of: dict[str, str] = {}
        self._end_users: list[str] = []

    def write(self) -> Answers:
        """Write accounts, keys, entries, corrections and closed months. Raises LedgerUnavailable."""
        self._write_accounts()
        for day in range(DAYS):
            self._settle(day)
        self._set_budgets()
        self._correct()
        return self._answers()

    def _at(self, day: int) -> float:
        """The beginning of a day of the history."""
        return self._today - (DAYS - 1 - day) * DAY_S

    def _write_accounts(self) -> None:
        begin = self._at(0)
        accounts = AccountStore(self._engine, clock=lambda: begin)
        organizations = dict.fromkeys(organization for organization, _ in PROJECTS.values())
        for name in organizations:
            limits = Limits(budget_nusd=Nusd(400 * 10**9), budget_window="calendar_month")
            accounts.create_organization(account_id=f"org_{_slug(name)}", name=name, limits=limits)
        values = DimensionValues(self._engine, clock=lambda: begin)
        for project, (organization, services) in PROJECTS.items():
            project_id = f"proj_{_slug(project)}"
            accounts.create_project(account_id=project_id, name=project, organization=organization)
            for service in services:
                self._key(service.alias, project_id, begin)
            for number in range(IDLE_KEYS):
                self._key(f"{_slug(project)}-team-{number + 1:02}", project_id, begin + number * DAY_S)
        self._end_users = [values.ids_of("proj_patient-chat", {"end_user": one})["end_user"] for one in END_USERS]
        self._reprice()

    def _reprice(self) -> None:
        """The audit entry of the change of prices."""
        audit_log = AuditLog(self._engine, clock=lambda: self._at(TURN_DAY))
        before = {name: prices_in(_price(model.price_before or model.price)) for name, model in MODELS.items()}
        now = {name: prices_in(_price(model.price)) for name, model in MODELS.items()}
        for name, details in changes(before, now).items():
            with audit_log.operation(OWNER, ACTION, name, details):
                pass

    def _key(self, alias: str, project_id: str, at: float) -> None:
        secret = new_secret().reveal()
        KeyStore(self._engine, clock=lambda: at).create(
            key_id=f"key_{alias}", alias=alias, digest=digest(secret, self._stores.pepper()), hint=hint(secret),
            models=None, expires_at=None, project_id=project_id,
        )  # fmt: skip
        self._project_of[f"key_{alias}"] = project_id

    def _settle(self, day: int) -> None:
        """Settle the requests of a day at its end, and close the month that ended with the day before."""
        end = min(self._at(day) + DAY_S, self._now)
        store = LedgerStore(self._engine, content_hash=content_hash, clock=lambda: end)
        records = sorted(self._requests(day, end), key=lambda one: one.opened.started_at)
        self._records += records
        store.settle([Arrival(entry(one)) for one in records])
        if datetime.fromtimestamp(self._at(day), UTC).day == 2:
            close(store, _month_before(self._at(day)), by=OWNER.name)
            issue_all(self._engine)

    def _requests(self, day: int, end: float) -> Iterator[UsageRecord]:
        if day == DAYS - 2:
            yield _asked_about(self._request(day, end, PROJECTS["Patient chat"][1][0]))
        for project, (_, services) in PROJECTS.items():
            for service in services:
                mean = service.before if day < TURN_DAY else service.after
                for _ in range(int(mean + self._chance.random())):
                    yield self._request(day, end, service)
            if day < IDLE_KEYS * 6 and day % 6 == 3:
                alias = f"{_slug(project)}-team-{day // 6 + 1:02}"
                yield self._request(day, end, _Service(alias, "tera-small", 0, 0, 400, 90))

    def _request(self, day: int, end: float, service: _Service) -> UsageRecord:
        chance, begin = self._chance, self._at(day)
        model, at = MODELS[service.model], begin + chance.random() * (end - begin - 60)
        number = len(self._records) + chance.randrange(10**6)
        prompt = int(service.prompt_tokens * (0.4 + 1.2 * chance.random()))
        output = int(service.completion_tokens * (0.3 + 1.4 * chance.random()))
        price = _price(model.price_before or model.price) if day < TURN_DAY else _price(model.price)
        opened = Opened(
            exchange_id=exchange_id(int(at * 1000)), key_id=f"key_{service.alias}", key_alias=service.alias,
            provider=model.provider, model=service.model, upstream_model=f"{service.model}-0901",
            endpoint="/v1/embeddings" if output == 0 else "/v1/chat/completions", streamed=output > 0, started_at=at,
            price=price, cost=_price(model.cost), prompt_tokens_estimate=prompt, completion_tokens_max=None, slot=0,
        )  # fmt: skip
        if service.alias == "chat-web":
            opened = replace(opened, dimensions={"end_user": chance.choice(self._end_users)})
        usage = Usage(prompt, prompt // 4, output, None, prompt + output)
        record = UsageRecord(
            opened=opened, outcome=Outcome.SERVED, reading=Reading(usage, UsageSource.REPORTED),
            bills=BillableParts.EVERYTHING, events=output, bytes=output * 190 + 400,
            duration_ms=round(400 + output * 4.2, 3), first_token_ms=round(180 + chance.random() * 700, 3),
            finish_reason="stop", provider_response_id=f"chatcmpl-{number:08x}",
        )  # fmt: skip
        return self._otherwise(day, record)

    def _otherwise(self, day: int, record: UsageRecord) -> UsageRecord:
        """The record, or one of a request that did not end as usual."""
        chance = self._chance.random()
        if record.opened.provider == FAILING and day in OUTAGE_DAYS:
            return _failed(record)
        if record.opened.streamed and chance < 0.05:
            return _left(record, events=record.events // 2)
        if record.opened.provider == "tera" and chance > 0.985:
            return _estimated(record)
        return record

    def _set_budgets(self) -> None:
        """Lifetime budgets, of which a part is spent that is known."""
        keys = KeyStore(self._engine, clock=lambda: self._now)
        charges = self._charges()
        for alias, percent in NEARLY_SPENT.items():
            budget = Nusd(charges[f"key_{alias}"] * 100 // percent)
            keys.update(alias, limits=Limits(budget_nusd=budget, budget_window="none"))
        for project in PROJECTS:
            keys.update(f"{_slug(project)}-team-01", limits=Limits(budget_nusd=Nusd(20 * 10**9), rpm=60))

    def _charges(self) -> Mapping[str, int]:
        """Key → what its requests were charged."""
        charges: dict[str, int] = defaultdict(int)
        for record in self._records:
            charges[record.opened.key_id] += entry(record).charge_nusd or 0
        return charges

    def _correct(self) -> None:
        """A gift to Northwind."""
        store = LedgerStore(self._engine, content_hash=content_hash, clock=lambda: self._now)
        last = next(one for one in reversed(self._records) if one.opened.key_alias == "shop-summaries")
        request = CorrectionRequest(charge_nusd=Nusd(0))
        Corrections(self._engine, store, SUPPORT.name).adjust(
            last.opened.exchange_id, request, "the answer was cut off"
        )

    def _answers(self) -> Answers:
        contoso = {f"proj_{_slug(name)}" for name, (who, _) in PROJECTS.items() if who == "Contoso Health"}
        lines = [
            (record, entry(record).charge_nusd or 0)
            for record in self._records
            if self._project_of[record.opened.key_id] in contoso
        ]
        turn, month = self._at(TURN_DAY), _month_before(self._now)
        after = [(record, nusd) for record, nusd in lines if record.opened.started_at >= turn]
        new = sum(nusd for _, nusd in after)
        old_price = {name: _price(model.price_before or model.price) for name, model in MODELS.items()}
        at_old = sum(
            entry(replace(one, opened=replace(one.opened, price=old_price[one.opened.model]))).charge_nusd or 0
            for one, _ in after
        )
        found = next(one for one in self._records if one.provider_response_id == FOUND_RESPONSE)
        return Answers(
            contoso=Change(sum(nusd for _, nusd in lines) - new, new, new - at_old),
            found_exchange=found.opened.exchange_id,
            nearly_spent=NEARLY_SPENT,
            repriced="tera-large",
            failing=(FAILING, sum(_is_failed(one) for one in self._records)),
            month=month,
            month_nusd=sum(nusd for one, nusd in lines if month.since <= one.opened.started_at < month.until),
        )  # fmt: skip


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")


def _month_before(at: float) -> Month:
    """The month before the one with this moment (Unix seconds), in UTC."""
    first = datetime.fromtimestamp(at, UTC).replace(day=1)
    return month_from(f"{first - timedelta(days=1):%Y-%m}")


def _left(record: UsageRecord, *, events: int) -> UsageRecord:
    """Its client left after so many events; the rest was read for the reported usage."""
    rest_ms = round((record.events - events) * 4.2, 3)
    return replace(
        record, outcome=Outcome.CLIENT_LEFT, events=events, bytes=events * 190 + 400,
        details={"policy": "drain", "read_on_ms": rest_ms},
    )  # fmt: skip


def _asked_about(record: UsageRecord) -> UsageRecord:
    usage = replace(
        record.reading.usage, completion_tokens=154, total_tokens=(record.reading.usage.prompt_tokens or 0) + 154
    )
    record = replace(
        record, reading=Reading(usage, UsageSource.REPORTED), events=154, provider_response_id=FOUND_RESPONSE,
        details={}, outcome=Outcome.SERVED, finish_reason="stop",
    )  # fmt: skip
    return _left(record, events=77)


def _failed(record: UsageRecord) -> UsageRecord:
    """The provider answered 500, and nothing is billed."""
    return replace(
        record, outcome=Outcome.UPSTREAM_FAILED, reading=Reading(Usage(), UsageSource.NONE),
        bills=BillableParts.NOTHING, events=0, bytes=0, first_token_ms=None, finish_reason=None,
        provider_response_id=None, details={"failed": "answered 500", "upstream_status": 500},
    )  # fmt: skip


def _is_failed(record: UsageRecord) -> bool:
    return record.outcome is Outcome.UPSTREAM_FAILED and record.opened.provider == FAILING


def _estimated(record: UsageRecord) -> UsageRecord:
    """The provider broke off before it reported usage."""
    reading = Reading(record.reading.usage, UsageSource.ESTIMATED, "estimate-3", 0.041)
    letters = 4 * (record.reading.usage.completion_tokens or 0)
    evidence = {"text_events": record.events, "chars_latin": letters, "blanks": letters // 6, "marks": letters // 30}
    return replace(
        record, outcome=Outcome.UPSTREAM_FAILED, reading=reading, finish_reason=None, details={"evidence": evidence}
    )

"""Settings: what is written is what is started with, and nonsense is refused by the name of its field."""

from __future__ import annotations

import pickle
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.money import usd_text
from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.prices import charge, configured
from proxy.billing.pricing.rules import Hours, PriceSide
from proxy.billing.record import BillableParts, Price, Rates
from proxy.metering.usage import Usage, service_of
from proxy.settings import (
    ProviderSettings,
    Secret,
    Settings,
    SettingsError,
    from_environment,
    load,
    parse,
    require_prices,
    route,
)
from proxy.settings.environment import KNOWN
from proxy.sinks.kinds import SINKS

CANARY = "sk-canary-0123456789"
PER_TOKEN: dict[str, Any] = {"input": 1, "output": 1}
ENV = {
    "ELECTRON_API_KEY": CANARY,
    "EMPTY": "",
    "PORT": "9001",
    "BLANKS": "two words\r\nX: y",
    "QUOTED": "'sk-electron-1'",
    "HOST": "host.example",
    "ADMIN": "0123456789abcdefghijABCDEFGHIJ-_",
}
FULL = """
listen: {host: 0.0.0.0, port: "${PORT}"}
data_dir: ./state
ledger: sqlite
queue: local
shutdown_grace_s: 5
write_stall_s: 2.5
request_bytes_max: 4 MiB
exchanges_max: 100
admin: {host: 0.0.0.0, port: 9009, secret: "${ADMIN}"}
journal: {bytes_max: 2 GiB, durability: power}
providers:
  electron:
    base_url: https://${HOST}/waves/v1/
    api_key: ${ELECTRON_API_KEY}
    admin_key: ${ELECTRON_API_KEY}
    admin_url: https://${HOST}/admin/v1/
    dialects: [openai.chat]
    on_client_disconnect: drain
    drain: {seconds: 60, tokens: 4096}
    timeouts: {connect_s: 1, first_byte_s: 2, first_event_s: 2.5, idle_s: 3.5, total_s: 4, background_s: 5}
    inject_usage: never
    heartbeat_s: 15
    cumulative: true
    failover_on: [400, 429, 5xx, failed_answer]
    bill: {client_left: output, failed_after_content: nothing}
models:
  electron:
    provider: electron
    upstream_model: electron-2
    price: {input: 0.10, cached_input: 0.05, output: 0.40}
    cost:  {input: 0.08, output: 0.32}
    tokenizer: words/${HOST}.json
  "*":
    provider: electron
"""
SMALL: dict[str, Any] = {
    "providers": {"electron": {"base_url": "https://host.example/v1", "api_key": "${ELECTRON_API_KEY}"}},
    "models": {"electron": {"provider": "electron", "price": {"input": 1, "output": 2}}},
}


def settings(document: object, **variables: str) -> Settings:
    return parse(yaml.safe_dump(document), env=ENV | variables, folder=Path("/etc/tokenweir"))


def changed(path: str, value: object) -> dict[str, Any]:
    """The small document with one field set; the path is given with slashes."""
    document = deepcopy(SMALL)
    *above, last = path.split("/")
    place = document
    for name in above:
        place = place.setdefault(name, {})
    place[last] = value
    return document


def refusal(document: object, **variables: str) -> str:
    with pytest.raises(SettingsError) as refused:
        settings(document, **variables)
    return str(refused.value)


def test_every_field_of_the_file_arrives() -> None:
    read = parse(FULL, env=ENV, folder=Path("/etc/tokenweir"))
    assert (read.listen.host, read.listen.port) == ("0.0.0.0", 9001)
    assert read.data_dir == Path("/etc/tokenweir/state")
    assert (read.ledger, read.queue) == (None, None)
    assert (read.admin.host, read.admin.port, read.admin.secret) == ("0.0.0.0", 9009, Secret(ENV["ADMIN"]))
    assert (read.shutdown_grace_s, read.write_stall_s) == (5, 2.5)
    assert (read.request_bytes_max, read.exchanges_max) == (4 << 20, 100)
    assert (read.journal.bytes_max, read.journal.durability) == (2 << 30, "power")
    provider = read.providers["electron"]
    assert provider.name == "electron"
    assert provider.base_url == "https://host.example/waves/v1"
    assert (provider.api_key, provider.admin_key) == (Secret(CANARY), Secret(CANARY))
    assert provider.admin_url == "https://host.example/admin/v1"
    assert provider.dialects == ("openai.chat",)
    assert (provider.on_client_disconnect, provider.inject_usage) == ("drain", "never")
    assert provider.failover_on == {"400", "429", "5xx", "failed_answer"}
    assert (provider.drain.seconds, provider.drain.tokens) == (60, 4096)
    assert asdict(provider.timeouts) == {
        "connect_s": 1, "first_byte_s": 2, "first_event_s": 2.5, "idle_s": 3.5, "total_s": 4, "background_s": 5
    }  # fmt: skip
    assert (provider.heartbeat_s, provider.cumulative) == (15, True)
    assert provider.bill == {"client_left": "output", "failed_after_content": "nothing"}
    model = read.models["electron"]
    (one,) = model.providers
    assert model.tokenizer == Path("/etc/tokenweir/words/host.example.json")
    assert (model.name, one.provider, one.upstream_model, one.weight) == ("electron", "electron", "electron-2", None)
    assert model.price is not None
    assert model.price.at(0) == configured(Rates(100_000_000, 50_000_000, 400_000_000))
    assert one.cost is not None
    assert one.cost.at(0) == configured(Rates(80_000_000, 80_000_000, 320_000_000))
    assert read.models["*"].is_pattern


@pytest.mark.parametrize(
    "secret", ["", "short", "changeme" * 4, "0" * 64, "a b" * 20, "0123456789abcdefghijABCDEFGHIJ-"]
)
def test_a_secret_of_the_admin_listener_cannot_be_guessed(secret: str) -> None:
    refused = refusal(changed("admin/secret", "${ADMIN}"), ADMIN=secret)
    assert refused.startswith("admin.secret: ")
    assert not secret or secret not in refused


def test_providers_in_short_are_their_names() -> None:
    both = {"electron": {"base_url": "https://e.example/v1"}, "tera": {"base_url": "https://t.example/v1"}}
    mixed = ["electron", {"provider": "tera", "upstream_model": "t"}]
    models = {"*": {"providers": ["electron", "tera"]}, "m": {"providers": mixed}}
    read = settings({"providers": both, "models": models})
    assert [one.provider for one in read.models["*"].providers] == ["electron", "tera"]
    found = [(one.provider, one.upstream_model) for one in read.models["m"].providers]
    assert found == [("electron", "m"), ("tera", "t")]


def test_headers_of_a_provider_are_kept_as_secrets() -> None:
    headers = {"up": {"OpenAI-Project": "${ELECTRON_API_KEY}"}, "pass_up": ["X-Team"], "pass_down": ["X-RateLimit-*"]}
    read = settings(changed("providers/electron/headers", headers)).providers["electron"].headers
    assert read.up["OpenAI-Project"].reveal() == CANARY
    assert CANARY not in repr(read)
    assert (read.pass_up, read.pass_down) == ({"x-team"}, {"x-ratelimit-*"})


def test_streams_are_kept_only_if_asked_for() -> None:
    assert settings(SMALL).resume is None
    read = settings({**SMALL, "resume": {"bytes_max": "1 MiB", "minutes": 3, "address": "http://${HOST}:8080/"}}).resume
    assert read is not None
    assert (read.bytes_max, read.total_bytes_max, read.minutes) == (1 << 20, 256 << 20, 3)
    assert read.address == f"http://{ENV['HOST']}:8080"
    kept = settings({**SMALL, "resume": {}}).resume
    assert kept is not None
    assert kept.address is None


def test_cors_is_off_unless_origins_are_listed() -> None:
    assert settings(SMALL).cors is None
    origins = ["https://app.example", "http://localhost:5173", "tauri://localhost"]
    read = settings({**SMALL, "cors": {"origins": origins}})
    assert read.cors is not None
    assert read.cors.origins == set(origins)


def test_the_defaults() -> None:
    read = settings(SMALL)
    assert (read.listen.host, read.listen.port) == ("127.0.0.1", 8080)
    assert read.data_dir == Path("/etc/tokenweir/data")
    assert (read.ledger, read.queue, read.key_pepper, read.allow_literal_secrets) == (None, None, None, False)
    assert (read.queue_shards, read.lease_s) == (1, 30)
    assert (read.worker.host, read.worker.port) == ("127.0.0.1", 8081)
    assert (read.admin.host, read.admin.port, read.admin.secret) == ("127.0.0.1", 8090, None)
    assert (read.shutdown_grace_s, read.write_stall_s) == (30, 60)
    assert (read.request_bytes_max, read.exchanges_max) == (64 << 20, 16_384)
    assert (read.journal.bytes_max, read.journal.durability) == (1 << 30, "process")
    provider = read.providers["electron"]
    assert (provider.on_client_disconnect, provider.inject_usage, provider.heartbeat_s) == ("cancel", "auto", 0)
    assert asdict(provider.drain) == {"seconds": 120, "tokens": 8192}
    assert asdict(provider.timeouts) == {
        "connect_s": 10, "first_byte_s": 120, "first_event_s": 5, "idle_s": 120, "total_s": 3600, "background_s": 86_400
    }  # fmt: skip
    assert provider.cumulative is None
    assert provider.bill == {}
    assert read.models["electron"].providers[0].upstream_model == "electron"


P, M = "providers/electron", "models/electron"
# What is refused begins with the field, dotted, where it does not stand here.
WRONG: list[tuple[str, object, str]] = [
    ("listen/port", 70_000, ": must be a whole number from 0 to 65535"),
    ("listen/port", True, ": must be a whole"),
    ("listen/port", 80.5, ": must be a whole"),
    ("listen/host", "", ": must be"),
    ("listen/prot", 80, ": unknown field; did you mean port?"),
    ("streams_max", 64, ": was renamed: write exchanges_max"),
    ("budgets", {"when_down": "open"}, ".when_down: was renamed: write on_store_outage"),
    ("budgets", {"spent_status": 429}, ".spent_status: was renamed: write exceeded_status"),
    ("budgets", {"allowance_usd": 2}, ".allowance_usd: was renamed: write outage_allowance_usd"),
    ("idempotency", {"remember_s": 5}, ".remember_s: was renamed: write retention_s"),
    (f"{P}/on_client_leave", "drain", ": was renamed: write on_client_disconnect"),
    ("listen", [], ": must be a mapping"),
    ("ledger", "postgresql://u:pw@h/d", ": a password does not belong in this file"),
    ("ledger", "mysql://h/d", ": must be `sqlite`, or a URL: `postgresql://…`"),
    ("ledger", "postgresql://", ": must be `sqlite`, or a URL"),
    ("ledger", "postgres://h/d\n", ": begins or ends with a blank or a line end: remove it"),
    ("ledger", "postgres://h/d", "key_pepper: is missing: proxies that share a ledger must hash keys alike"),
    ("ledger", "postgresql://h/d", "key_pepper: is missing: proxies that share a ledger must hash keys alike"),
    ("queue", "redis://h", "ledger: must be `postgresql://…` when `queue` is set"),
    ("queue", "redis://:pw@h", ": a password does not belong in this file"),
    ("queue", "kafka", ": must be `local`, or a URL: `redis://…`"),
    ("queue_shards", 0, ": must be a whole number from 1 to 64"),
    ("lease_s", 0, ": must be seconds, > 0"),
    ("key_pepper", "c0ffee" * 10, ": a secret does not belong in this file"),
    ("key_pepper", "${ELECTRON_API_KEY}", ": must be 64 hexadecimal digits"),
    ("worker/port", 70_000, ": must be"),
    ("shutdown_grace_s", -1, ": must be seconds, ≥ 0"),
    ("write_stall_s", 0, ": must be seconds, > 0"),
    ("request_bytes_max", "16 MB", ": must be"),
    ("request_bytes_max", "9999 GiB", ": must be"),
    ("exchanges_max", 0, ": must be"),
    ("journal/bytes_max", 1, ": must be"),
    ("journal/durability", "hope", ": must be `process` or `power`"),
    ("allow_literal_secrets", "yes please", ": must be true or false"),
    ("data_dir", "", ": must be"),
    (f"{P}/failover_on", "429", ": must be a list of statuses from 400 to 499, `5xx` and `failed_answer`"),
    (f"{P}/failover_on", [429, 503], ": must be a list of statuses"),
    (f"{P}/failover_on", [200], ": must be a list of statuses"),
    (f"{P}/failover_on", [True], ": must be a list of statuses"),
    (f"{M}/tokenizer", "", ": must be the path of a file"),
    (f"{M}/tokenizer", True, ": must be the path of a file"),
    ("cors", {}, ".origins: is missing"),
    ("resume", True, ": must be"),
    ("resume/minutes", 0, ": must be"),
    ("resume/bytes_max", "1 KiB", ": must be"),
    ("resume/address", "10.0.0.7:8080", ": must be"),
    ("cors/origins", ["https://app.example/"], "[0]: must be"),
    ("cors/origins", ["https://App.example"], "[0]: must be"),
    ("cors/origins", ["app.example"], "[0]: must be"),
    ("cors/origins", ["null"], "[0]: must be"),
    ("providers", {}, ": must be a mapping with at least one name"),
    ("providers", {"Electron!": {}}, ".Electron!: invalid name"),
    ("providers", {True: {}}, ".True: invalid name"),
    (f"{P}/base_url", None, ": is missing"),
    (f"{P}/timeouts/idle_s", 0, ": must be seconds, > 0"),
    (f"{P}/timeouts/idle_s", 120_000, ": must be"),
    (f"{P}/timeouts/idle_s", float("nan"), ": must be"),
    (f"{P}/timeouts/idle_s", float("inf"), ": must be"),
    (f"{P}/timeouts/idle_s", 10**400, ": must be"),
    (f"{P}/timeouts/idle_s", "long", ": must be"),
    (f"{P}/timeouts/idle", 5, ": unknown field; did you mean idle_s?"),
    (f"{P}/drain/tokens", 1.5, ": must be"),
    (f"{P}/on_client_disconnect", "wait", ": must be `cancel` or `drain`"),
    (f"{P}/inject_usage", True, ": must be"),
    (f"{P}/cumulative", "maybe", ": must be"),
    (f"{P}/dialects", ["latin"], "[0]: unknown: must be one of `openai`"),
    (f"{P}/dialects", ["openai", "antropic"], "[1]: unknown; did you mean anthropic?"),
    (f"{P}/dialects", [], ": must be a list"),
    (f"{P}/dialects", "openai", ": must be a list"),
    (f"{P}/key_header", "cookie", ": must be `authorization` or `x-api-key`"),
    (f"{P}/bill", {"on_sundays": "nothing"}, ".on_sundays: unknown situation"),
    (f"{P}/bill", {"client_left": "half"}, ".client_left: must be"),
    (f"{P}/bill", "nothing", ": must be a mapping"),
    (f"{P}/name", "x", ": unknown field"),
    (f"{P}/headers", {"up": {"Host": "x"}}, ".up.Host: must not be set"),
    (f"{P}/headers", {"up": {"Authorization": "x"}}, ".up.Authorization: must not be set"),
    (f"{P}/headers", {"up": {"a b": "x"}}, ".up.a b: invalid name"),
    (f"{P}/headers", {"up": {"a": "x\r\ny"}}, ".up.a: must be visible"),
    (f"{P}/headers", {"up": {"a": 1}}, ".up.a: must be a text"),
    (f"{P}/headers", {"up": {"a": "1", "A": "2"}}, ".up: must not contain a name twice"),
    (f"{P}/headers", {"pass_up": "X-A"}, ".pass_up: must be a list"),
    (f"{P}/headers", {"pass_up": ["Cookie"]}, ".pass_up[0]: must not be set"),
    (f"{P}/headers", {"pass_up": ["*"]}, ".pass_up[0]: must be the name"),
    (f"{P}/headers", {"pass_down": ["x-*"]}, ".pass_down[0]: must be the name"),
    (f"{P}/headers", {"pass_down": ["Set-Cookie"]}, ".pass_down[0]: must not be set"),
    ("models", {}, ": must be a mapping with at least one name"),
    ("models/a b", {"provider": "electron"}, ": invalid name"),
    ("models/a*", {"provider": "electron"}, ": invalid name"),
    ("models/*", {}, ".provider: is missing"),
    ("models/*", {"provider": "electron", "upstream_model": "x"}, ".upstream_model: cannot be set for a name with *"),
    (f"{M}/provider", "elektron", ": unknown provider; must be one of electron"),
    (f"{M}/upstream_model", "two words", ": must be"),
    (f"{M}/price/input", -1, ": must be USD per million tokens"),
    (f"{M}/price/output", float("nan"), ": must be"),
    (f"{M}/price/cached_input", 10_001, ": must be"),
    (f"{M}/price", {"input": 1}, ".output: is missing"),
    (
        f"{M}/price",
        {"input": 0, "15": None, "output": 1},
        ".15: unknown field; a number has a decimal point, not a comma",
    ),
    (f"{M}/price/cache_write", "much", ": must be USD per million tokens"),
    (f"{M}/price/image", 101, ": must be USD per image, a number from 0 to 100"),
    (f"{M}/price/audio_hour", -1, ": must be USD per hour"),
    (f"{M}/price/characters", True, ": must be USD per million characters"),
    (f"{M}/price/searches", [1], ": must be USD per 1,000 searches"),
    (f"{M}/price/request", "1e-10", ": must be USD per request"),
    (f"{M}/price/audio", 1, ": unknown field; did you mean audio_hour?"),
    (f"{M}/price/service_tiers", {"Priority": {}}, ".Priority: invalid name"),
    (f"{M}/price/service_tiers", {"auto": {}}, ".auto: invalid name"),
    (f"{M}/price/service_tiers", {"flex": {"input": 1}}, ".flex.output: is missing"),
    (f"{M}/price/service_tiers", {"flex": PER_TOKEN | {"service_tiers": {}}}, ".flex.service_tiers: unknown field"),
    (f"{M}/price/multipliers", {"fast": 6}, ".fast: invalid name: must be `tier:`"),
    (f"{M}/price/multipliers", {"tier:auto": 6}, ".tier:auto: invalid name"),
    *(
        (f"{M}/price/multipliers", {"speed:fast": by}, ".speed:fast: must be a number from 0 to 1000, or a fraction")
        for by in (-1, True, "much", "1/0", "1e9", 1001, [6], float("nan"))
    ),
    (
        f"{M}/price",
        PER_TOKEN | {"service_tiers": {"flex": PER_TOKEN}, "multipliers": {"tier:flex": 2}},
        ".multipliers.tier:flex: service_tiers.flex has its prices already",
    ),
    ("price_rules", {"Acme": {"multiply": 1}}, ".Acme: invalid name"),
    ("price_rules", {"r": {}}, ".r: must have exactly one of multiply, stated, price"),
    ("price_rules", {"r": {"multiply": 1, "stated": 1}}, ".r: must have exactly one of"),
    ("price_rules", {"r": {"multiply": -1}}, ".r.multiply: must be a number from 0 to 1000"),
    ("price_rules", {"r": {"price": {"input": 1}}}, ".r.price.output: is missing"),
    ("price_rules", {"r": {"stated": 1, "served_as": "tier:flex"}}, ".r.served_as: needs `multiply`"),
    ("price_rules", {"r": {"multiply": 1, "served_as": "flex"}}, ".r.served_as: must be `tier:`"),
    ("price_rules", {"r": {"multiply": 1, "keys": "anna"}}, ".r.keys: must be a list"),
    ("price_rules", {"r": {"multiply": 1, "begins": "soon"}}, ".r.begins: must be a date or a time"),
    (
        "price_rules",
        {"r": {"multiply": 1, "begins": "2026-12-01", "ends": "2026-12-01"}},
        ".r.ends: must be later than `begins`",
    ),
    ("price_rules", {"r": {"multiply": 1, "hours": "8-9"}}, ".r.hours: must be times of day"),
    ("price_rules", {"r": {"multiply": 1, "hours": "08:00-08:00"}}, ".r.hours: must not end when it begins"),
    ("price_rules", {"r": {"multiply": 1, "weekdays": ["monday"]}}, ".r.weekdays[0]: unknown; did you mean mon?"),
    ("price_rules", {"r": {"multiply": 1, "time_zone": "Mars/Base"}}, ".r.time_zone: must be a time zone"),
    ("price_rules", {"r": {"multiply": 1, "time_zone": "../etc"}}, ".r.time_zone: must be a time zone"),
    ("price_rules", {"r": {"multiply": 1, "changes": "both"}}, ".r.changes: must be `charge` or `cost`"),
    ("price_rules", {"r": {"multiply": 1, "provider": "x"}}, ".r.provider: unknown field"),
    (f"{M}/price/changes", [], ": must be a mapping of dates to price lists"),
    (f"{M}/price/changes", {"soon": PER_TOKEN}, ".soon: must be a date"),
    (f"{M}/price/changes", {"2026-12-01": {"input": 1}}, ".2026-12-01.output: is missing"),
    (
        f"{M}/price/changes",
        {"2026-12-01": PER_TOKEN, "2026-12-01T00:00:00Z": PER_TOKEN},
        ".2026-12-01T00:00:00Z: is the same time as another one of them",
    ),
    (f"{M}/price/changes", {"2026-12-01": PER_TOKEN | {"changes": {}}}, ".2026-12-01.changes: unknown field"),
    (f"{M}/price/tiers", {"200000": {}}, ": must be a list"),
    (f"{M}/price/tiers", [PER_TOKEN], "[0].above_prompt_tokens: is missing"),
    (
        f"{M}/price/tiers",
        [PER_TOKEN | {"above_prompt_tokens": 0}],
        "[0].above_prompt_tokens: must be a whole number from 1",
    ),
    (
        f"{M}/price/tiers",
        [PER_TOKEN | {"above_prompt_tokens": above} for above in (9, 200, 200)],
        "[2].above_prompt_tokens: must be greater than in the tier before",
    ),
    (
        f"{M}/price/service_tiers",
        {"flex": PER_TOKEN | {"tiers": [{"above_prompt_tokens": 5, "output": 1}]}},
        ".flex.tiers[0].input: is missing",
    ),
    (f"{M}/cost", 0.5, ": must be a mapping"),
]


def price_of(written: dict[str, Any], at: float = 0.0) -> Price:
    lists = settings(changed(f"{M}/price", written)).models["electron"].price
    assert lists is not None
    return lists.at(at)


def test_a_price_changes_when_it_was_announced_to() -> None:
    changes = {
        date(2027, 1, 1): {"input": 4, "output": 8},  # as YAML reads a plain date
        "2026-12-01": {"input": 2, "output": 4, "multipliers": {"tier:flex": 0.5}},
        "2027-01-01T12:00:00+02:00": {"input": 5, "output": 9, "service_tiers": {"flex": PER_TOKEN}},
    }
    written = {"input": 1, "output": 2, "changes": changes}
    begins = [datetime(*day, tzinfo=UTC).timestamp() for day in ((2026, 12, 1), (2027, 1, 1), (2027, 1, 1, 10))]
    found = [price_of(written, at).tiers[0].input // 10**9 for start in begins for at in (start - 0.001, start)]
    assert found == [1, 2, 2, 4, 4, 5]
    whole = price_of(changes["2026-12-01"])
    assert price_of(written, begins[0]) == whole, "a whole list, and nothing of the one before"
    assert price_of(written, begins[0] - 1) == price_of({"input": 1, "output": 2})


def test_rules_of_prices_are_read_in_their_order() -> None:
    written = {
        "acme": {"organizations": ["acme"], "models": ["claude-*"], "multiply": 0.9, "begins": "2026-12-01"},
        "night": {"multiply": "1/2", "weekdays": ["fri"], "hours": "22:00-24:00", "time_zone": "Europe/Berlin"},
        "list": {"changes": "cost", "price": {"input": 1, "output": 2}},
    }
    text = yaml.safe_dump({**yaml.safe_load(FULL), "price_rules": written}, sort_keys=False)
    settings = parse(text, env=ENV, folder=Path(), sinks=SINKS)
    acme, night, own = settings.price_rules.values()
    assert (acme.name, acme.multiply, acme.models) == ("acme", "0.9", {"claude-*"})
    assert acme.begins == datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    assert night.hours == Hours(time(22), time(0))
    assert (night.weekdays, str(night.time_zone), night.multiply) == (("fri",), "Europe/Berlin", "1/2")
    assert (own.changes, own.price) == (PriceSide.COST, configured(Rates(10**9, 10**9, 2 * 10**9)))


def test_multipliers_of_a_price_list_are_exact() -> None:
    written = {"input": 1, "output": 2, "multipliers": {"speed:fast": 6, "geography:us": 1.1, "tier:flex": "5/3"}}
    price = price_of(written)
    assert price.multipliers == {"speed:fast": "6", "geography:us": "1.1", "tier:flex": "5/3"}
    assert price.version != price_of({"input": 1, "output": 2}).version


def test_a_price_list_in_every_unit_and_with_variants() -> None:
    written = {
        "input": 2, "cached_input": 0.2, "cache_write": 2.5, "cache_write_1h": 4, "audio_input": 40, "output": 8,
        "audio_output": 80, "reasoning": 3, "image": 0.04, "audio_hour": 0.36, "characters": 15, "searches": 10,
        "request": 0.005,
        "service_tiers": {"flex": {"input": 1, "output": 4}, "priority": {"input": 4, "output": 16, "searches": 0}},
    }  # fmt: skip
    price = price_of(written)
    usd = 10**9
    base = Rates(
        2 * usd, usd // 5, 8 * usd, 0, 5 * usd // 2, 4 * usd, 40 * usd, 80 * usd, 3 * usd, usd // 25, 36 * usd // 100,
        15 * usd, 10 * usd, usd // 200,
    )  # fmt: skip
    units = {"image": usd // 25, "audio_hour": 36 * usd // 100, "characters": 15 * usd, "request": usd // 200}
    flex = Rates(usd, usd, 4 * usd, **units, searches=10 * usd)
    priority = Rates(4 * usd, 4 * usd, 16 * usd, **units, searches=0)
    assert price == configured(base, service_tiers={"flex": (flex,), "priority": (priority,)})
    assert price_of({"input": 0.1, "cached_input": 0.05, "output": 0.4}).version == "config-8abdc940"


def test_a_price_list_with_tiers_for_long_prompts() -> None:
    written = {
        "input": 1.25, "cached_input": 0.125, "output": 10, "searches": 14,
        "tiers": [
            {"above_prompt_tokens": 128_000, "input": 2, "output": 12},
            {"above_prompt_tokens": 200_000, "input": 2.5, "cached_input": 0.25, "output": 15, "searches": 35},
        ],
        "service_tiers": {
            "priority": {
                "input": 2.5, "output": 20, "tiers": [{"above_prompt_tokens": 200_000, "input": 5, "output": 30}]
            },
        },
    }  # fmt: skip
    price = price_of(written)
    long, longer = Usage(prompt_tokens=200_000), Usage(prompt_tokens=200_001)
    costs = {
        (length, tier): usd_text(charge(price, usage, BillableParts.EVERYTHING, service_of(tier)))
        for length, usage in (("short", Usage(prompt_tokens=128_000)), ("long", long), ("longer", longer))
        for tier in (None, "priority", "flex")
    }
    assert costs == {
        ("short", None): "0.16", ("short", "priority"): "0.32", ("short", "flex"): "0.16",
        ("long", None): "0.4", ("long", "priority"): "0.5", ("long", "flex"): "0.4",
        ("longer", None): "0.5000025", ("longer", "priority"): "1.000005", ("longer", "flex"): "0.5000025",
    }  # fmt: skip
    searched = [
        charge(price, Usage(prompt_tokens=tokens, searches=1), BillableParts.OUTPUT) for tokens in (1, 150_000, 300_000)
    ]
    assert [usd_text(nusd) for nusd in searched] == ["0.014", "0.014", "0.035"], "what a tier leaves out is as below it"
    without = {name: value for name, value in written.items() if name != "tiers"}
    assert price_of(without).version != price.version


SHARED = {"ledger": "${DATABASE_URL}", "queue": "redis+sentinel://:${REDIS_PW}@a:1,b:2/main", "key_pepper": "${PEPPER}"}
SHARED_ENV = {"DATABASE_URL": "postgresql://u:s3cret@db/tokenweir", "REDIS_PW": "pw-canary", "PEPPER": "0a" * 32}


def test_several_machines_share_a_queue_and_a_ledger() -> None:
    read = settings({**SMALL, **SHARED}, **SHARED_ENV)
    assert read.ledger == Secret("postgresql://u:s3cret@db/tokenweir")
    assert read.queue == Secret("redis+sentinel://:pw-canary@a:1,b:2/main")
    assert read.key_pepper == Secret("0a" * 32)
    assert "s3cret" not in repr(read)
    assert "pw-canary" not in repr(read)


def test_a_refused_url_shows_no_password() -> None:
    refused = refusal({**SMALL, **SHARED}, **SHARED_ENV | {"DATABASE_URL": "mysql://u:s3cret@db/tokenweir"})
    assert refused.startswith("ledger: must be")
    assert "s3cret" not in refused


def test_nonsense_is_refused_by_the_name_of_its_field() -> None:
    for path, value, says in WRONG:
        expected = path.replace("/", ".") + says if says[0] in ".:[" else says
        assert refusal(changed(path, value)).startswith(expected), expected


@pytest.mark.parametrize(
    ("base_url", "read"),
    [
        ("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"),
        ("https://h.example/", "https://h.example"),
        ("https://h.example/waves/v1//", None),
        ("https://[::1]:8443/v1", "https://[::1]:8443/v1"),
        ("ftp://h.example", None),
        ("h.example/v1", None),
        ("https://", None),
        ("https://u:p@h.example", None),
        ("https://h.example/v1?key=1", None),
        ("https://h.example/v1?", None),
        ("https://h.example/v1#x", None),
        ("https://h.example/a/../b", None),
        ("https://h.example/%2e%2e/b", None),
        ("https://h.example:99999/", None),
        ("https://h.example/a b", None),
        ("https://h.example/v1\r\nX: y", None),
        ("https://hé.example", None),
        ("https://h.example/v1/chat/completions", None),
        (17, None),
    ],
)
def test_a_base_url_is_a_plain_one(base_url: object, read: str | None) -> None:
    document = changed("providers/electron/base_url", base_url)
    if read is None:
        assert refusal(document).startswith("providers.electron.base_url: ")
    else:
        assert settings(document).providers["electron"].base_url == read


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("${NO_SUCH_VARIABLE}", "the environment variable NO_SUCH_VARIABLE is not set"),
        ("${EMPTY}", "the secret is empty (${EMPTY})"),
        ("${BLANKS}", "the secret must be at most 4096 visible"),
        ("${QUOTED}", "the secret is in quotes: remove them"),
        ("sk-literal-1", "a secret does not belong in this file"),
        ("sk-${ELECTRON_API_KEY}", "a secret does not belong in this file"),
        ("", "a secret does not belong in this file"),
        (123, "must be a string"),
    ],
)
@pytest.mark.parametrize("name", ["api_key", "admin_key"])
def test_a_key_comes_from_a_variable_that_is_set(name: str, written: object, says: str) -> None:
    assert refusal(changed(f"providers/electron/{name}", written)).startswith(f"providers.electron.{name}: {says}")


def test_a_literal_key_needs_leave() -> None:
    document = changed("providers/electron/api_key", "sk-literal-1") | {"allow_literal_secrets": True}
    key = settings(document).providers["electron"].api_key
    assert key is not None
    assert key.reveal() == "sk-literal-1"
    document["providers"]["electron"]["api_key"] = ""
    assert refusal(document) == "providers.electron.api_key: the secret is empty"


def test_a_secret_does_not_show_itself() -> None:
    read = settings(changed("providers/electron/admin_key", "${ELECTRON_API_KEY}"))
    shown = [repr(read), str(read), f"{read}", str(asdict(read)), f"{read.providers['electron'].api_key}"]
    assert not [text for text in shown if CANARY in text]
    assert pickle.loads(pickle.dumps(read)) == read  # worker processes get it whole


ANYTHING = {"providers", "models", "data_dir", f"{M}/tokenizer"}


def test_no_refusal_quotes_a_value() -> None:
    paths = {path for path, _, _ in WRONG} - ANYTHING
    said = {path: refusal(changed(path, "${ELECTRON_API_KEY}!")) for path in paths}
    assert {path: text for path, text in said.items() if CANARY in text} == {}


def test_variables_are_filled_in_anywhere_and_missing_ones_named() -> None:
    assert settings(changed("listen/host", "a.${HOST}")).listen.host == "a.host.example"
    assert settings(changed("listen/port", "${PORT}")).listen.port == 9001
    assert (
        refusal(changed("listen/host", "${NOPE}"))
        == "listen.host: the environment variable NOPE is not set (nor NOPE_FILE)"
    )
    assert refusal(changed(f"{M}/price/input", "${NOPE}")).startswith("models.electron.price.input: the environment")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listen: {port: 1, port: 2}", "line 1: duplicate field 'port'"),
        ("models:\n  a: {provider: x}\n  a: {provider: y}\n", "line 3: duplicate field 'a'"),
        ("providers: [", "line 1: invalid YAML"),
        (f"a: '{CANARY}", "line 1: invalid YAML"),
        ("a: 2026-99-99", "invalid YAML"),
        ("[" * 500, "invalid YAML"),
        ("!!python/object:os.system {}", "line 1: invalid YAML"),
        ("", "must be a mapping"),
        ("just text", "must be a mapping"),
        ("modles: {}", "modles: unknown field; did you mean models?"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(text, env=ENV, folder=Path())
    assert str(refused.value).startswith(says)
    assert CANARY not in str(refused.value)


def test_a_file_is_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tokenweir.yaml"
    with pytest.raises(SettingsError, match="No such file"):
        load(file, ENV)
    file.write_bytes(b"listen: {host: \xff}")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        load(file, ENV)
    file.write_text(FULL)
    assert load(file, ENV).data_dir == tmp_path / "state"
    file.write_text(FULL.replace("./state", "/var/lib/tokenweir"))
    assert load(file, ENV).data_dir == Path("/var/lib/tokenweir")


def test_names_lead_to_models() -> None:
    document = changed("models/*", {"provider": "electron"})
    document["models"]["groq/*"] = {"provider": "electron"}
    document["models"]["renamed"] = {"provider": "electron", "upstream_model": "real/name"}
    models = settings(document).models

    def found(asked: str) -> tuple[str, str] | None:
        way = route(models, asked)
        return way and (way[0].name, way[1] or way[0].providers[0].upstream_model)

    assert found("electron") == ("electron", "electron")
    assert found("renamed") == ("renamed", "real/name")
    assert found("groq/llama/x") == ("groq/*", "llama/x")
    assert found("groq/") == ("*", "groq/")
    assert found("anything/else") == ("*", "anything/else")
    assert found("") is None
    assert route(settings(SMALL).models, "other") is None
    assert route(settings(SMALL).models, "*") is None


SEVERAL = [
    {"provider": "electron"},
    {"provider": "second", "upstream_model": "other", "cost": {"input": 1, "output": 2}},
]


def several(**fields: Any) -> dict[str, Any]:
    """The small document with a second provider, and a model with these fields."""
    document = changed("providers/second", {"base_url": "https://second.example/v1"})
    document["models"]["many"] = {"price": {"input": 1, "output": 2}, **fields}
    return document


def test_a_model_has_providers_in_order_or_by_weight_and_other_names() -> None:
    document = several(providers=SEVERAL)
    document["models"]["nick"] = {"alias_of": "many"}
    models = settings(document).models
    first, second = models["many"].providers
    assert (first.provider, first.upstream_model, first.weight, first.cost) == ("electron", "many", None, None)
    assert (second.provider, second.upstream_model) == ("second", "other")
    assert second.cost is not None
    assert second.cost.at(0) == configured(Rates(1_000_000_000, 1_000_000_000, 2_000_000_000))
    nick = models["nick"]
    assert (nick.name, nick.providers, nick.price) == ("nick", models["many"].providers, models["many"].price)
    weighted = settings(several(providers=[{**one, "weight": 3} for one in SEVERAL])).models["many"]
    assert [one.weight for one in weighted.providers] == [3, 3]
    document["models"]["any/*"] = {"providers": [{"provider": "electron"}, {"provider": "second"}]}
    assert [one.upstream_model for one in settings(document).models["any/*"].providers] == ["", ""]


@pytest.mark.parametrize(
    ("fields", "starts"),
    [
        ({}, "provider: is missing"),
        ({"provider": "electron", "providers": SEVERAL}, "providers: cannot be combined with `provider`"),
        ({"providers": SEVERAL, "cost": {"input": 1, "output": 1}}, "cost: cannot be combined with"),
        ({"providers": SEVERAL, "upstream_model": "x"}, "upstream_model: cannot be combined with"),
        ({"providers": []}, "providers: must be a list"),
        ({"providers": {"provider": "electron"}}, "providers: must be a list"),
        ({"providers": [7]}, "providers[0]: must be a mapping"),
        ({"providers": [{}]}, "providers[0].provider: is missing"),
        ({"providers": [*SEVERAL, {"provider": "third"}]}, "providers[2].provider: unknown provider"),
        ({"providers": [*SEVERAL, {"provider": "electron"}]}, "providers[2].provider: duplicate"),
        ({"providers": [*SEVERAL, {"provider": "second", "weight": 1}]}, "providers[2].weight: must be"),
        ({"providers": [{"provider": "electron", "weight": 0}]}, "providers[0].weight: must be a whole"),
        ({"providers": [{"provider": "electron", "order": 0}]}, "providers[0].order: unknown field"),
        ({"alias_of": "electron"}, "price: cannot be combined with `alias_of`"),
        ({"price": None, "alias_of": "nobody"}, "alias_of: must name a model"),
        ({"price": None, "alias_of": "many"}, "alias_of: must name a model"),
        ({"price": None, "alias_of": "electron", "provider": "second"}, "provider: cannot be combined"),
        ({"price": None, "alias_of": "*"}, "alias_of: must be a model name"),
    ],
)  # fmt: skip
def test_who_answers_is_said_once_and_leads_somewhere(fields: dict[str, Any], starts: str) -> None:
    assert refusal(several(**fields)).startswith(f"models.many.{starts}")


def test_an_alias_names_a_model_and_nothing_wider() -> None:
    chained = changed("models/a", {"alias_of": "electron"})
    chained["models"]["b"] = {"alias_of": "a"}
    assert refusal(chained).startswith("models.b.alias_of: must name a model")
    wide = changed("models/*", {"alias_of": "electron"})
    assert refusal(wide).startswith("models.*.alias_of: must name a model")


def test_a_named_model_without_any_price_is_refused() -> None:
    asked: list[tuple[str, str]] = []
    known = configured(Rates(1, 1, 1))

    def book(provider: ProviderSettings, model: str) -> Any:
        asked.append((provider.name, model))
        return known if model == "listed" else None

    require_prices(settings(SMALL), book)
    require_prices(settings(changed("models/*", {"provider": "electron"})), book)
    assert asked == []
    require_prices(settings(changed("models/b", {"provider": "electron", "upstream_model": "listed"})), book)
    assert asked == [("electron", "listed")]
    for cost in ({}, {"cost": PER_TOKEN}):
        with pytest.raises(SettingsError, match=r"^models\.b\.price: is missing"):
            require_prices(settings(changed("models/b", {"provider": "electron", **cost})), book)


@pytest.mark.parametrize("model", ["text-embedding-3-small", "tts-1", "whisper-1"])
def test_a_named_model_that_makes_no_tokens_has_the_price_of_the_book(model: str) -> None:
    book = PriceBook()
    require_prices(
        settings(changed("models/b", {"provider": "electron", "upstream_model": model})),
        lambda provider, name: book.price(provider="openai", base_url=provider.base_url, model=name, at=1.8e9),
    )


def test_one_provider_in_the_environment_answers_to_every_name() -> None:
    read, taken = from_environment({"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1/"})
    assert read.providers["openai"].base_url == "http://127.0.0.1:9/v1"
    assert read.providers["openai"].api_key == Secret(CANARY)
    assert route(read.models, "gpt-4o") == (read.models["*"], "gpt-4o")
    assert taken == ["openai: http://127.0.0.1:9/v1, key from OPENAI_API_KEY, serves any model name"]


def test_of_several_providers_each_answers_to_its_own_prefix() -> None:
    env = {known.key_variable: CANARY for known in KNOWN} | {"TENSORLOOP_BASE_URL": "https://t.example/v1"}
    read, taken = from_environment(env, folder=Path("/srv"))
    assert len(read.providers) == len(taken) == len(KNOWN)
    assert read.data_dir == Path("/srv/data")
    assert read.providers["tensorloop"].on_client_disconnect == "drain"
    assert read.providers["tera"].on_client_disconnect == "cancel"
    model, upstream_model = route(read.models, "openrouter/openai/gpt-4o") or pytest.fail("no route")
    assert (model.provider, upstream_model) == ("openrouter", "openai/gpt-4o")
    assert route(read.models, "gpt-4o") is None
    assert not [line for line in taken if CANARY in line]


def test_an_environment_without_a_provider_says_what_was_looked_at() -> None:
    with pytest.raises(SettingsError) as refused:
        from_environment({"OPENAI_API_KEY": "", "TENSORLOOP_API_KEY": CANARY})
    text = str(refused.value)
    assert not [known for known in KNOWN if known.key_variable not in text]
    assert "TENSORLOOP_API_KEY is set but needs TENSORLOOP_BASE_URL too" in text
    _, taken = from_environment({"GROQ_API_KEY": "k", "TENSORLOOP_API_KEY": CANARY})
    assert taken[0].startswith("groq: ")
    assert taken[1].startswith("TENSORLOOP_API_KEY is ignored")


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.sampled_from([*SMALL, "electron", "listen", "base_url", "price", "x"]), below, max_size=4)
    ),
    max_leaves=12,
)


@given(documents)
def test_any_document_is_read_or_refused_and_never_crashes(document: object) -> None:
    with suppress(SettingsError):
        settings(document)

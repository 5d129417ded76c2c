"""`tokenweir simulate`: what a re-rating of a copy would give, and the ledger as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import asdict, replace

from proxy.billing.pricing.prices import charge, configured
from proxy.billing.record import BillableParts, Rates
from proxy.billing.settlement import entry
from proxy.metering.usage import ServedAs, Usage
from tests.cli.commands import CONFIG, Commands, on_a_terminal
from tests.ledger.entries import stored
from tests.ledger.priced_entries import FIRST, NODE, PRICE, a_real_record

pytestmark = pytest.mark.io

USD = 10**9
WRITTEN = Usage(1_000, 100, 50, 0, 1_050, cache_write_tokens=400)
OTHER = {"input": 3, "cached_input": 1, "output": 7, "cache_write": 4, "cache_write_1h": 8}
OTHER_RATES = Rates(3 * USD, USD, 7 * USD, cache_write=4 * USD, cache_write_1h=8 * USD)
MULTIPLIERS = {"tier:flex": 0.5, "speed:fast": 6}
SERVED = [ServedAs(), ServedAs("flex"), ServedAs(None, "fast")]


def configuration(folder: Path, name: str, **price: Any) -> Path:
    model = {"provider": "tera", "price": price, "cost": {"input": 1, "output": 1}}
    file = folder / name
    file.write_text(yaml.safe_dump(CONFIG | {"models": {"tera-large": model}}))
    return file


@pytest.fixture
def run(run: Commands) -> Commands:
    """Three exchanges are settled there: as usual, at flex, fast."""
    records = [a_real_record(number, usage=WRITTEN, price=PRICE) for number in range(len(SERVED))]
    readings = [replace(one.reading, **asdict(as_)) for one, as_ in zip(records, SERVED, strict=True)]
    entries = [entry(replace(one, reading=read)) for one, read in zip(records, readings, strict=True)]
    run.settle(*entries, node=NODE, seq=FIRST)
    return run


def total(run: Commands, *arguments: str) -> dict[str, Any]:
    before = run.ledger(lambda store: stored(store.engine))
    *by_key, last = run("simulate", "--since", "2026-01-01", *arguments)
    assert run.ledger(lambda store: stored(store.engine)) == before, "nothing is written"
    assert [one["exchanges"] for one in by_key] == [last["exchanges"]]
    assert [(one["key_id"], one["key_alias"], one["model"]) for one in by_key] == [("key-1", "anna", "tera-large")]
    return last


def simulated(found: dict[str, Any]) -> int:
    return round(float(found["simulated_charge_usd"]) * USD)


def nusd(usage: Usage, served_as: ServedAs) -> int:
    price = configured(OTHER_RATES, multipliers={name: str(by) for name, by in MULTIPLIERS.items()})
    return charge(price, usage, BillableParts.EVERYTHING, served_as)


def test_it_is_what_a_rerating_of_a_copy_gives(run: Commands, tmp_path: Path) -> None:
    other = configuration(tmp_path, "other.yaml", **OTHER, multipliers=MULTIPLIERS)
    found = total(run, "--prices", str(other))
    assert (found["exchanges"], found["without_price"], found["unreadable"]) == (3, 0, 0)
    run.config = other  # on the same ledger
    (rerated,) = run("rerate", "--model", "tera-large", "--since", "2026-01-01")
    entries = run.ledger(lambda store: stored(store.engine))
    for name, field in (("charge_usd", "charge_nusd"), ("cost_usd", "cost_nusd")):
        now = sum(getattr(one, field) or 0 for one in entries if one.kind == "usage")
        then = sum(getattr(one, field) or 0 for one in entries)
        assert round(float(found[name]) * USD) == now
        assert round(float(found[f"simulated_{name}"]) * USD) == then
        assert round(float(rerated[name]) * USD) == then - now != 0
    assert run("simulate", "--since", "2026-01-01")[-1]["charge_usd"] == found["simulated_charge_usd"]


def test_another_tier_and_another_lifetime_of_caches(run: Commands, tmp_path: Path) -> None:
    other = str(configuration(tmp_path, "other.yaml", **OTHER, multipliers=MULTIPLIERS))
    flex = total(run, "--prices", other, "--tier", "flex")
    assert simulated(flex) == sum(nusd(WRITTEN, replace(one, service_tier="flex")) for one in SERVED)
    hour = total(run, "--prices", other, "--cache", "1h")
    assert simulated(hour) == sum(nusd(replace(WRITTEN, cache_write_1h_tokens=400), one) for one in SERVED)
    assert total(run, "--prices", other, "--cache", "5m") == total(run, "--prices", other)


def test_what_has_no_price_is_counted(run: Commands) -> None:
    assert [total(run)[name] for name in ("without_price", "unpriced", "unknown_cost")] == [2, 0, 0]
    assert total(run, "--tier", "priority")["without_price"] == 3
    assert run("simulate", "--since", "2026-01-01", "--model", "nobody's")[-1]["exchanges"] == 0
    assert run("simulate", "--since", "2026-01-01", "--until", "2026-01-02")[-1]["exchanges"] == 0
    run.settle(replace(entry(a_real_record(9)), charge_nusd=None, cost_nusd=None))
    assert [total(run)[name] for name in ("unpriced", "unknown_cost")] == [1, 1]


def test_a_file_that_is_no_configuration_is_refused_by_its_fields(run: Commands, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("models: 7")
    run("simulate", "--since", "30d", "--prices", str(tmp_path / "broken.yaml"), code=1)
    assert [line.split(": ")[-2] for line in run.err.splitlines()] == ["providers", "models"]


def test_a_person_sees_a_table_and_the_sum(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    run("simulate", "--since", "2026-01-01")
    header, row, _, *total = run.out.splitlines()
    assert header.split()[:3] == ["KEY", "MODEL", "EXCHANGES"]
    assert row.split()[:3] == ["anna", "tera-large", "3"]
    assert max(map(len, (header, row))) <= 80
    assert total[0].split() == ["exchanges:", "3"]
    assert run("simulate", "--since", "2026-01-01", "--json")[-1]["exchanges"] == 3

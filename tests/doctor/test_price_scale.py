"""Prices that were written for another unit are found before they are billed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.doctor.finding import CheckedDeployment, Severity
from proxy.doctor.price_scale import price_scale
from proxy.settings import parse

PROVIDERS = {"openai": {"base_url": "https://api.openai.com/v1"}, "own": {"base_url": "http://127.0.0.1:1/v1"}}
# 2.5 and 10 USD per million tokens in the book.
MODEL = {"provider": "openai", "upstream_model": "gpt-4o"}


def found(folder: Path, **model: Any) -> list[str]:
    raw = {"providers": PROVIDERS, "models": {"m": model}}
    settings = parse(yaml.safe_dump(raw), env={"PEPPER": "5e" * 32}, folder=folder)
    findings = price_scale(CheckedDeployment(settings, 0.0))
    assert all((one.check, one.severity) == ("prices", Severity.WARNING) and one.advice for one in findings)
    return [one.message for one in findings]


@pytest.mark.parametrize(
    ("price", "warnings"),
    [
        ({"input": 2.5, "output": 10}, []),
        ({"input": 50, "output": 200}, []),
        ({"input": 0, "output": 0}, []),
        ({"input": "0.0025", "output": 10}, ["input: 0.0025 USD is 1/1,000 of the 2.5 USD of the price book"]),
        ({"input": 2_500, "output": 10}, ["input: 2500 USD is 1,000 times the 2.5 USD of the price book"]),
    ],
)  # fmt: skip
def test_a_price_of_another_scale(tmp_path: Path, price: dict[str, Any], warnings: list[str]) -> None:
    assert found(tmp_path, **MODEL, price=price) == [f"models.m.price.{one}" for one in warnings]


def test_the_cost_of_each_provider_is_looked_at(tmp_path: Path) -> None:
    target = {"provider": "openai", "upstream_model": "gpt-4o", "cost": {"input": 2.5, "output": 10_000}}
    other = {"provider": "own", "upstream_model": "m", "cost": {"input": 9_999, "output": 1}}
    assert found(tmp_path, providers=[other, target]) == [
        "models.m.providers.1.cost.output: 10000 USD is 1,000 times the 10 USD of the price book"
    ]

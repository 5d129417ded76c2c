"""The options that set limits, and the JSON of keys and accounts.

Invariants: money is read and printed in USD. An absent option changes nothing; `none` removes a limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from proxy.billing.byok import terms_text
from proxy.billing.dimensions import KeyDimensions
from proxy.billing.keys import Account, ApiKey
from proxy.billing.limits import BUDGET_NUSD_MAX, RATE_MAX, THRESHOLD_MAX, Limits, Measure, Raise
from proxy.billing.money import Nusd, usd_text
from proxy.billing.windows import CALENDAR, LIFETIME
from proxy.cli.common import WrongUsage
from proxy.cli.values import Usd, Whole, lifetime, quota, time_zone, window
from proxy.foundation.times import iso_utc

if TYPE_CHECKING:
    from proxy.reports.totals import SpendAndCredit


def add_limits(parser: argparse.ArgumentParser, *, of_rule: bool = False) -> None:
    """Add the options that keys, projects and organizations share, or those of a rule."""

    def option(name: str, kind: Callable[[str], Any], metavar: str, words: str, action: str = "store") -> None:
        parser.add_argument(name, type=kind, metavar=metavar, help=words, default=argparse.SUPPRESS, action=action)

    option(
        "--budget", Usd(0, BUDGET_NUSD_MAX, or_none=True), "USD", "maximum spend in each window; none removes the limit"
    )
    option(
        "--budget-window",
        window,
        "WINDOW",
        f"window of the budget: 30d (the default), 12h, …; {', '.join(CALENDAR)}; or {LIFETIME} (never resets)",
    )
    option(
        "--time-zone", time_zone, "ZONE", "time zone of a calendar window: Europe/Berlin, …; none: UTC (the default)"
    )
    percent = Whole(1, THRESHOLD_MAX, or_none=True)
    words = "send an alert when so much of the budget is spent; repeatable; none: 50, 80 and 100 %%"
    option("--alert-at", percent, "PERCENT", words, "append")
    words = "amount that is added to the budget until --raise-until; none removes it"
    option("--raise", Usd(1, BUDGET_NUSD_MAX, or_none=True), "USD", words)
    words = "end of --raise: a duration from now, or a date (2027-01-31, at its beginning in UTC)"
    option("--raise-until", lifetime, "3d", words)
    of_accounts = {
        "--prepaid": "limit spend to the added credit (see `credit add`)",
        "--cost-in-answers": "return the cost of each answer in its usage",
    }
    for name, words in () if of_rule else of_accounts.items():
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=words)
    if of_rule:
        words = f"maximum in each window, such as requests=100; MEASURE: {', '.join(Measure)}; repeatable"
        option("--quota", quota, "MEASURE=N", words, "append")
        words = "the budget sends alerts, but refuses no request"
        parser.add_argument(
            "--alert-only", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=words
        )
    rate = Whole(1, RATE_MAX, or_none=True)
    option("--rpm", rate, "N", "requests in any 60 s; none removes the limit")
    option("--tpm", rate, "N", "tokens in any 60 s; none removes the limit")
    option("--parallel", rate, "N", "concurrent exchanges; none removes the limit")


def limit_changes(options: argparse.Namespace) -> dict[str, Any]:
    """The given options of `add_limits`, by field name of `Limits`."""
    given = vars(options)
    named = {name: name for name in Limits.__struct_fields__} | {"budget_nusd": "budget"}
    changes = {name: given[option] for name, option in named.items() if option in given}
    if "alert_at" in given:
        changes["thresholds"] = () if None in given["alert_at"] else tuple(sorted(set(given["alert_at"])))
    if "quota" in given:
        changes["quotas"] = dict(given["quota"])
        if len(changes["quotas"]) < len(given["quota"]):
            raise WrongUsage("--quota: the same measure is given twice")
    if ("raise" in given) != ("raise_until" in given) and given.get("raise", 0) is not None:
        raise WrongUsage("--raise: needs --raise-until, and --raise-until needs --raise")
    if "raise" in given:
        changes["raised"] = _raised(given["raise"], given.get("raise_until"))
    return changes


def _raised(nusd: Nusd | None, until: str | None) -> Raise | None:
    from proxy.billing.keys import expires_at_from

    if nusd is None or until is None:
        return None
    ends = expires_at_from(until, time.time())
    if ends is None:
        raise WrongUsage("--raise-until: must be a time; to raise the budget for ever, use --budget")
    return Raise(nusd, ends)


def key_json(key: ApiKey) -> dict[str, Any]:
    """The printed form of a key."""
    return {
        "key_id": key.key_id,
        "alias": key.alias,
        "hint": key.hint,
        "models": None if key.models is None else sorted(key.models),
        "project_id": key.project_id,
        "limits": limits_json(key.limits),
        "on_exhausted": key.on_exhausted.value,
        "on_store_outage": None if key.on_store_outage is None else key.on_store_outage.value,
        "tags": list(key.tags),
        **dimensions_json(key),
        "byok": None if key.byok is None else terms_text(key.byok),
        **_times(key, "created_at", "expires_at", "revoked_at", "blocked_at", "old_until"),
    }


def dimensions_json(key: ApiKey) -> dict[str, Any]:
    """The sources of a key's dimensions (None: the deployment's), and its fixed values."""
    own = key.dimensions or KeyDimensions()
    return {
        "dimension_sources": None if own.sources is None else list(own.sources),
        "dimensions": dict(own.fixed),
    }


def account_json(account: Account) -> dict[str, Any]:
    """The printed form of an organization or a project."""
    return {
        "account_id": account.account_id,
        "kind": account.kind.value,
        "name": account.name,
        "parent_id": account.parent_id,
        "limits": limits_json(account.limits),
        **_times(account, "created_at", "blocked_at"),
    }


def limits_json(limits: Limits) -> dict[str, Any]:
    """The limits that are set; the window only with a budget."""
    shown: dict[str, Any] = {}
    if limits.budget_nusd is not None:
        shown |= {"budget_usd": usd_text(limits.budget_nusd), "budget_window": limits.budget_window}
    if limits.time_zone is not None:
        shown["time_zone"] = limits.time_zone
    if limits.raised is not None:
        shown["raised"] = {"usd": usd_text(limits.raised.nusd), "until": iso_utc(limits.raised.until)}
    if limits.thresholds:
        shown["thresholds"] = list(limits.thresholds)
    if limits.alert_only:
        shown["alert_only"] = True
    if limits.quotas:
        shown |= {"quotas": dict(limits.quotas), "budget_window": limits.budget_window}
    if limits.prepaid:
        shown["prepaid"] = True
    if limits.cost_in_answers:
        shown["cost_in_answers"] = True
    rates = {name: getattr(limits, name) for name in ("rpm", "tpm", "parallel")}
    return shown | {name: rate for name, rate in rates.items() if rate is not None}


def paid_json(paid: SpendAndCredit) -> dict[str, str | None]:
    """The printed form of a balance; nothing is left or missing where no credit was added."""
    return {
        "used_usd": usd_text(paid.used_nusd),
        "credit_usd": usd_text(paid.credit_nusd),
        "left_usd": usd_text(paid.left_nusd) if paid.credit_nusd else None,
    }


def _times(key: ApiKey | Account, *names: str) -> dict[str, str | None]:
    moments = {name: getattr(key, name) for name in names}
    return {name: None if moment is None else iso_utc(moment) for name, moment in moments.items()}

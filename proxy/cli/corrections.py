"""`tokenweir adjust` and `rerate` correct settled exchanges; `simulate` computes their charges at other prices.

Invariant: a command that writes entries prints exactly those entries.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from proxy.billing.correction import ADJUSTED_COUNTS, AMOUNT_NUSD_MAX, HIGHEST, amounts_text, changed_totals
from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.money import Nusd, usd_text
from proxy.cli.common import (
    Failure,
    WrongUsage,
    add_yes,
    confirm,
    json_line,
    load_settings,
    store_of,
    with_config,
)
from proxy.cli.list_tables import RERATED, SIMULATED
from proxy.cli.output import aligned, print_object, print_table, prints_json
from proxy.cli.progress import Progress
from proxy.cli.values import REASON, Usd, Whole, moment, option_value
from proxy.foundation.users import operator
from proxy.metering.usage import service_of
from proxy.settings import Settings, SettingsError, route
from proxy.settings.fields import FieldPath
from proxy.settings.prices import PRICE

if TYPE_CHECKING:
    from proxy.billing.correction import ExchangeTotals
    from proxy.ledger.settling.corrections import CorrectionResult, Prices, RerateResult, SimulatedSum
    from proxy.reports.tables import Table
    from proxy.runtime.machine.ledger_stores import LedgerStores

_MONEY = {
    "charge_nusd": ("--charge-usd", "new charge to the owner of the key"),
    "cost_nusd": ("--cost-usd", "new cost at the provider"),
}


def add_commands(commands: Any) -> None:
    _add_adjust(commands)
    _add_rerate(commands)
    _add_simulate(commands)


def _add_adjust(commands: Any) -> None:
    adjust = with_config(
        commands,
        "adjust",
        "correct the counts or the amounts of an exchange by an adjustment entry",
        _adjust,
        action="adjust",
        quiet="id of the entry",
    )
    adjust.add_argument("exchange_id", metavar="EXCHANGE_ID")
    adjust.add_argument("--reason", type=REASON, required=True, metavar="TEXT", help="recorded in the entry")
    for name, (option, help_text) in _MONEY.items():
        adjust.add_argument(option, dest=name, type=Usd(0, AMOUNT_NUSD_MAX), metavar="USD", help=help_text)
    for name in ADJUSTED_COUNTS:
        words = "new count; charge and cost are recalculated"
        adjust.add_argument(_option(name), type=Whole(0, HIGHEST[name]), metavar="N", help=words)
    adjust.add_argument("--dry-run", action="store_true", help="print the entry without writing it")
    add_yes(adjust)


def _add_rerate(commands: Any) -> None:
    rerate = with_config(
        commands, "rerate", "recalculate past exchanges of a model at other prices", _rerate, action="rerate", quiet=""
    )
    rerate.add_argument("--model", required=True, metavar="MODEL", help="model name as clients request it")
    rerate.add_argument(
        "--since",
        type=moment,
        required=True,
        metavar="TIME",
        help="exchanges that began at or after: 2026-11-01, 24h, 7d, …",
    )
    rerate.add_argument("--until", type=moment, metavar="TIME", help="exchanges that began before (default: now)")
    price = 'USD per million tokens, such as {"input": 0.15, "output": 0.6} (default: the configured prices)'
    rerate.add_argument("--price", type=partial(option_value, json.loads), metavar="JSON", help=price)
    rerate.add_argument("--input", metavar="USD", help="price per million prompt tokens, instead of --price")
    rerate.add_argument("--output", metavar="USD", help="price per million completion tokens")
    rerate.add_argument("--cached-input", metavar="USD", help="price per million cached tokens (default: as --input)")
    rerate.add_argument(
        "--reread",
        action="store_true",
        help="also read the reported usage again: this version may know more of its numbers",
    )
    rerate.add_argument("--dry-run", action="store_true", help="print the totals without writing anything")
    rerate.add_argument("--verbose", action="store_true", help="also print the totals of each key")


def _add_simulate(commands: Any) -> None:
    simulate = with_config(
        commands,
        "simulate",
        "compute the charges and costs of past exchanges at other prices; writes nothing",
        _simulate,
        quiet="",
    )
    simulate.add_argument(
        "--since",
        type=moment,
        required=True,
        metavar="TIME",
        help="exchanges that began at or after: 2026-11-01, 24h, 30d, …",
    )
    simulate.add_argument("--until", type=moment, metavar="TIME", help="exchanges that began before (default: now)")
    simulate.add_argument("--model", metavar="MODEL", help="model name as clients request it (default: all)")
    simulate.add_argument(
        "--prices", type=Path, metavar="FILE", help="configuration with the prices to apply (default: --config)"
    )
    simulate.add_argument("--tier", metavar="WORD", help="assume this service tier")
    simulate.add_argument("--cache", choices=("5m", "1h"), help="assume this cache lifetime")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _adjust(options: argparse.Namespace) -> None:
    from proxy.billing.correction import CorrectionRequest
    from proxy.ledger.settling.corrections import Corrections
    from proxy.reports.entry_reader import entry_json

    request = CorrectionRequest(**{name: getattr(options, name) for name in (*ADJUSTED_COUNTS, *_MONEY)})
    with store_of(options) as store:
        corrections = Corrections(store.engine, store.ledger, operator())
        _confirm_replacing(options, corrections.replaced_by_hand(options.exchange_id, request))
        line = corrections.adjust(options.exchange_id, request, options.reason, dry_run=options.dry_run)
        before = None if line is None else corrections.before(line)
    if line is None or before is None:
        print("tokenweir: the exchange already has these values; nothing was written", file=sys.stderr)
    else:
        made = {"dry_run": True} if options.dry_run else {}
        print_object(
            options, {**entry_json(line), **made}, "entry_id", partial(_adjusted, line, before, options.dry_run)
        )


def _adjusted(line: LedgerEntry, before: ExchangeTotals, is_dry_run: bool) -> list[str]:
    """What an adjustment changes, for people."""
    shown = []
    for name, (old, new) in changed_totals(before, line).items():
        if name in _MONEY:
            was = None if old is None else usd_text(old)
            shown.append((name.removesuffix("_nusd"), f"{_known(was)} → {usd_text(new)} USD"))
        else:
            shown.append((name.replace("_", " "), f"{_known(old)} → {new}"))
    shown += [("by", f"{operator()}: {EntryDetails.of(line.details).why}"), ("exchange", line.exchange_id)]
    if is_dry_run:
        return [*aligned(shown), "dry run: nothing was written"]
    return aligned([*shown, ("entry", line.entry_id)])


def _known(value: object | None) -> str:
    return "unknown" if value is None else str(value)


def _confirm_replacing(options: argparse.Namespace, amounts: Mapping[str, Nusd | None]) -> None:
    """Ask before an amount that an operator has set is calculated anew. Raises Failure."""
    if not amounts:
        return
    print(
        f"tokenweir: {amounts_text(amounts)} was set by an operator; it is calculated anew from the tokens",
        file=sys.stderr,
    )
    if not options.dry_run:
        confirm(options, "Replace it?")


def _rerate(options: argparse.Namespace) -> None:
    from proxy.ledger.settling.corrections import Corrections

    now = time.time()
    until = now if options.until is None else options.until
    settings = load_settings(options.config)
    given = _prices(options, settings)
    with store_of(options) as store, Progress("rerating", "exchanges") as shown:
        prices = given or _configured(settings, store)

        def progress(so_far: RerateResult) -> None:
            shown.done = so_far.exchanges

        result = Corrections(store.engine, store.ledger, operator()).rerate(
            options.model,
            prices,
            since=options.since,
            until=until,
            reread=options.reread,
            dry_run=options.dry_run,
            progress=progress,
        )
    by_key = [
        {"key_id": key_id, "key_alias": alias, **_change(change)}
        for (key_id, alias), change in sorted(result.by_key.items())
    ]
    counts = {"exchanges": result.exchanges, "manually_corrected": result.by_hand, "unreadable": result.unreadable}
    total = {**counts, **_change(result.total), **({"dry_run": True} if options.dry_run else {})}
    _print_sums(options, RERATED, by_key if options.verbose else [], total)


def _simulate(options: argparse.Namespace) -> None:
    from proxy.ledger.settling.corrections import Corrections

    now = time.time()
    until = now if options.until is None else options.until
    settings = load_settings(options.prices or options.config)
    with store_of(options) as store:
        prices = _configured(settings, store)
        result = Corrections(store.engine, store.ledger).simulate(
            prices, since=options.since, until=until, model=options.model,
            otherwise=partial(_otherwise, tier=options.tier, cache=options.cache),
        )  # fmt: skip
    by_key = [
        {"key_id": key_id, "key_alias": alias, "model": model, **_simulated(sums)}
        for (key_id, alias, model), sums in sorted(result.by_key.items())
    ]
    _print_sums(options, SIMULATED, by_key, {**_simulated(result.total), "unreadable": result.unreadable})


def _print_sums(
    options: argparse.Namespace, table: Table, parts: Sequence[dict[str, Any]], total: dict[str, Any]
) -> None:
    """Print sums by key and the sum of all: a line of JSON each, or for people a table and the fields of the total."""
    if not prints_json(options) and parts:
        print_table(table, parts)
        print()
    elif parts:
        print("\n".join(map(json_line, parts)))
    print_object(options, total)


def _simulated(sums: SimulatedSum) -> dict[str, Any]:
    amounts = {
        "charge_usd": usd_text(sums.charge_nusd),
        "simulated_charge_usd": usd_text(sums.simulated_charge_nusd),
        "cost_usd": usd_text(sums.cost_nusd),
        "simulated_cost_usd": usd_text(sums.simulated_cost_nusd),
    }
    counts = {"unpriced": sums.unpriced, "unknown_cost": sums.unknown_cost, "without_price": sums.without_price}
    return {"exchanges": sums.exchanges, **amounts, **counts}


def _otherwise(now: ExchangeTotals, *, tier: str | None, cache: str | None) -> ExchangeTotals:
    """The exchange as if served at another tier or cached for another lifetime. None: unchanged."""

    if tier is not None:
        now = replace(now, served_as=replace(now.served_as, service_tier=service_of(tier).service_tier))
    if cache is not None and now.usage.cache_write_tokens:
        hour = now.usage.cache_write_tokens if cache == "1h" else 0
        now = replace(now, usage=replace(now.usage, cache_write_1h_tokens=hour))
    return now


def _change(change: CorrectionResult) -> dict[str, Any]:
    money = {"charge_usd": usd_text(change.charge_nusd), "cost_usd": usd_text(change.cost_nusd)}
    return {"adjusted": change.adjusted, **money}


def _prices(options: argparse.Namespace, settings: Settings) -> Prices | None:
    """The price in the options, which applies to the charge only; None: the configured prices."""
    from proxy.ledger.settling.corrections import charged_at

    by_name = {"input": options.input, "output": options.output, "cached_input": options.cached_input}
    given = {name: value for name, value in by_name.items() if value is not None}
    if options.price is not None and given:
        raise WrongUsage("--price: cannot be combined with --input, --output or --cached-input")
    if options.price is None and not given:
        if route(settings.models, options.model) is None:
            raise Failure(f"models: {options.model!r} is no longer configured; set the price with --input and --output")
        return None
    try:
        lists = PRICE.read(given if options.price is None else options.price, FieldPath({}, Path(), parts=("price",)))
    except SettingsError as wrong:
        by_options = str(wrong).replace("price.", "", 1) if options.price is None else str(wrong)
        raise WrongUsage(f"--{by_options}") from None
    return charged_at(lists)


def _configured(settings: Settings, store: LedgerStores) -> Prices:
    from proxy.ledger.accounts.owners import payer_of
    from proxy.runtime.machine.price_check import book_in_use
    from proxy.runtime.machine.price_lookup import PriceLookup

    return PriceLookup(settings, book_in_use(settings, store.engine)[1], payer_of(store.engine))

"""`tokenweir adjust` and `rerate`: put right what is settled. Law: what is written is printed, and nothing else is."""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.billing.money import usd_text
from proxy.cli.common import Failure, acts_as, json_line, load_settings, store_of, typed, usd, with_config
from proxy.settings import Settings, route
from proxy.settings.kinds import FieldPath
from proxy.settings.prices import PRICE

if TYPE_CHECKING:
    from proxy.billing.entries import LedgerEntry
    from proxy.ledger.settling.corrections import CorrectionResult, Prices, RerateResult

_COUNTS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cache_write_tokens",
    "cache_write_1h_tokens", "audio_prompt_tokens", "audio_completion_tokens", "images", "audio_ms", "characters",
    "searches", "unbilled_prompt_tokens", "unbilled_completion_tokens",
)  # fmt: skip
_MONEY = {"charge_usd": "what the key's owner is billed", "cost_usd": "what the provider charges us"}

# How often `rerate` says how far it is.
PROGRESS_S = 1.0


def add_commands(commands: Any) -> None:
    """Make them known."""
    adjust = with_config(commands, "adjust", "set the numbers of an exchange, by one more entry")
    adjust.add_argument("exchange_id", metavar="EXCHANGE_ID")
    adjust.add_argument("--reason", required=True, metavar="TEXT", help="why, for whoever reads the ledger")
    for name, words in _MONEY.items():
        adjust.add_argument(_option(name), type=usd, metavar="USD", help=words)
    for name in _COUNTS:
        adjust.add_argument(_option(name), type=int, metavar="N", help="money follows, unless it is given")
    adjust.add_argument("--dry-run", action="store_true", help="print the entry and write nothing")
    acts_as(adjust, "adjust", _adjust)

    rerate = with_config(commands, "rerate", "give past exchanges of a model the money of other prices")
    rerate.add_argument("--model", required=True, metavar="M", help="the name that clients asked for")
    rerate.add_argument("--since", required=True, metavar="T", help="begun at or after: 2026-11-01, 24h, 7d, …")
    rerate.add_argument("--until", metavar="T", help="begun before (default: now)")
    price = '{"input": 0.15, "output": 0.6}'
    rerate.add_argument("--price", type=partial(typed, json.loads), metavar="JSON", help=price)
    rerate.add_argument("--input", metavar="USD", help="per million prompt tokens, instead of --price")
    rerate.add_argument("--output", metavar="USD", help="per million generated tokens")
    rerate.add_argument("--cached-input", metavar="USD", help="per million cached tokens (default: as --input)")
    rerate.add_argument("--dry-run", action="store_true", help="say what it would come to and write nothing")
    rerate.add_argument("--verbose", action="store_true", help="say it for each key too")
    acts_as(rerate, "rerate", _rerate)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _adjust(options: argparse.Namespace) -> int:
    from proxy.billing.correction import CorrectionRequest
    from proxy.ledger.settling.corrections import Corrections
    from proxy.reports.reports import entry_json

    wanted = CorrectionRequest(**{name: getattr(options, name) for name in (*_COUNTS, *_MONEY)})
    with store_of(options) as store:
        at_work = Corrections(store.engine, store.ledger)
        line = at_work.adjust(options.exchange_id, wanted, options.reason, dry_run=options.dry_run)
    if line is None:
        print("tokenweir: it comes to that already; nothing is written", file=sys.stderr)
    else:
        print(json_line(entry_json(line)))
    return 0


def _rerate(options: argparse.Namespace) -> int:
    from proxy.ledger.settling.corrections import Corrections
    from proxy.reports.reports import since_from

    now = time.time()
    since = since_from(options.since, now)
    until = now if options.until is None else since_from(options.until, now)
    prices = _prices(options, load_settings(options.config))
    with store_of(options) as store:
        done = Corrections(store.engine, store.ledger).rerate(
            options.model, prices, since=since, until=until, dry_run=options.dry_run, progress=_Progress()
        )
    if options.verbose:
        for (key_id, alias), change in sorted(done.by_key.items()):
            print(json_line({"key_id": key_id, "key_alias": alias, **_change(change)}))
    counts = {"exchanges": done.exchanges, "by_hand": done.by_hand, "unreadable": done.unreadable}
    print(json_line({**counts, **_change(done.total), **({"dry_run": True} if options.dry_run else {})}))
    return 0


def _change(change: CorrectionResult) -> dict[str, Any]:
    money = {"charge_usd": usd_text(change.charge_usd), "cost_usd": usd_text(change.cost_usd)}
    return {"adjusted": change.adjusted, **money}


class _Progress:
    """Says on standard error how far it is, now and then."""

    def __init__(self) -> None:
        self._next_at = time.monotonic() + PROGRESS_S

    def __call__(self, so_far: RerateResult) -> None:
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + PROGRESS_S
            print(f"tokenweir: {so_far.exchanges} exchanges, {so_far.total.adjusted} adjusted", file=sys.stderr)


def _prices(options: argparse.Namespace, settings: Settings) -> Prices:
    """The price that was given, for the charge alone; or those that the configuration has now."""
    given = {"input": options.input, "output": options.output, "cached_input": options.cached_input}
    given = {name: value for name, value in given.items() if value is not None}
    if options.price is not None and given:
        raise Failure("--price: either this or --input, --output and --cached-input")
    if options.price is None and not given:
        return _prices_now(options.model, settings)
    price = PRICE.read(given if options.price is None else options.price, FieldPath({}, Path(), path="price"))

    def prices(_: LedgerEntry) -> tuple[Any, None]:
        return price, None

    return prices


def _prices_now(model: str, settings: Settings) -> Prices:
    from proxy.billing.prices import PriceBook
    from proxy.runtime.machine.price_replay import CurrentPrices

    if route(settings.models, model) is None:
        raise Failure(f"models: nothing answers to {model!r} any more; give the price: --input, --output")
    return CurrentPrices(settings, PriceBook())

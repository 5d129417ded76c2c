"""`tokenweir prices`: the price that applies and the reason, and the changes in another price book."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from proxy.billing.money import usd_text
from proxy.billing.pricing.prices import applied, price_text, unpriced_service
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Price
from proxy.cli.common import (
    Failure,
    json_line,
    load_settings,
    store_of,
    whole_file,
    with_commands,
    with_config,
)
from proxy.cli.list_tables import PRICE_CHANGES
from proxy.cli.output import add_json, print_table
from proxy.cli.values import Whole, moment
from proxy.foundation.names import UnknownNameError
from proxy.foundation.times import iso_utc
from proxy.metering.usage import TOKENS_MAX, ServedAs, service_of
from proxy.settings import ModelSettings, Settings, TargetSettings, route
from proxy.settings.prices import PriceLists

_T = TypeVar("_T")

if TYPE_CHECKING:
    from proxy.gateway.upstream.client import UpstreamClient
    from proxy.ledger.price_list import PriceListState
    from proxy.runtime.machine.ledger_stores import LedgerStores
    from proxy.runtime.machine.price_acceptance import ModelChange
    from proxy.runtime.machine.price_file import PriceChange


def add_commands(commands: Any) -> None:
    prices = with_commands(commands, "prices", "prices of models")
    why = with_config(prices, "why", "print the price that applies to a model's requests, and the reason", _why)
    why.add_argument("model", metavar="MODEL", help="model name as clients request it")
    why.add_argument(
        "--prompt-tokens",
        type=Whole(0, TOKENS_MAX),
        default=0,
        metavar="N",
        help="length of the prompt (default: short)",
    )
    why.add_argument("--tier", metavar="WORD", help="service tier that the answer reports")
    why.add_argument("--speed", metavar="WORD", help="speed that the answer reports")
    why.add_argument("--geography", metavar="WORD", help="geography that the answer reports")
    for payer in ("key", "project", "organization"):
        why.add_argument(f"--{payer}", default="", metavar="ID|NAME", help=f"{payer} that pays, for price_rules")
    why.add_argument(
        "--at",
        type=moment,
        metavar="TIME",
        help="when the request began: 2026-11-01, 2026-11-01T12:00Z, 24h (default: now)",
    )
    add_json(why, "print one JSON object for each price")

    show = with_config(
        prices, "show", "print which price book applies, since when, and which changes were refused", _show
    )
    add_json(show, "print one JSON object")
    refresh = with_config(
        prices,
        "refresh",
        "fetch a newer price list now, as `prices.refresh` does at its times",
        _refresh,
        action="refresh prices",
    )
    refresh.add_argument("--dry-run", action="store_true", help="print the changes without applying them")
    add_json(refresh, "print one JSON object for each model")

    source = "file or URL of a price book, in the data format of genai-prices"
    diff = with_config(prices, "diff", "print the prices that differ in another price book", _diff)
    diff.add_argument("source", metavar="FILE|URL", help=source)
    add_json(diff, "print one JSON object for each price")
    update = with_config(
        prices, "update", "use another price book after the next start", _update, action="update prices"
    )
    update.add_argument("source", metavar="FILE|URL|package", help=f"{source}; `package`: the installed book")
    update.add_argument(
        "--confirm", action="store_true", help="accept missing prices, and changes by more than a factor of 3"
    )
    add_json(update, "print one JSON object for each changed price; after a refusal, for each doubtful price")


def _update(options: argparse.Namespace) -> None:
    """Install a price book. Suspicious changes are listed, and need `--confirm`."""
    from proxy.billing.pricing.book import PriceBook
    from proxy.runtime.machine.price_check import book_in_use
    from proxy.runtime.machine.price_file import book_from, changes, path_in, version_of

    settings = load_settings(options.config)
    file = path_in(settings.data_dir)
    with store_of(options) as store:
        state, before = book_in_use(settings, store.engine)
        if options.source == _PACKAGE:
            book = PriceBook()
            found = list(changes(before, book, time.time())) if options.json else []
            then = _share(settings, store, state, book.version, None)
            file.unlink(missing_ok=True)
            _print_update(options, found, f"the price book is the installed package's; {then}")
            return
        content = _content(options.source)
        found = list(changes(before, book_from(content, options.source), time.time()))
        doubtful = [change for change in found if change.suspicious]
        if doubtful and not options.confirm:
            for change in doubtful:
                print(_change_line(options, change))
            raise Failure(
                f"{len(doubtful)} of {len(found)} changes remove a price or move it by more than a factor of 3; "
                f"if that is right, repeat with --confirm"
            )
        then = _share(settings, store, state, version_of(content), content)
        with whole_file(file) as written:
            written.write(content)
    _print_update(options, found, f"{len(found)} prices changed ({version_of(content)}); {then}")


def _print_update(options: argparse.Namespace, found: Iterable[PriceChange], text: str) -> None:
    """Print the changes for programs, which have `text` on standard error."""
    if options.json:
        for change in found:
            print(_change_line(options, change))
    print(f"tokenweir: {text}", file=sys.stderr if options.json else sys.stdout)


def _share(settings: Settings, store: LedgerStores, state: PriceListState, version: str, content: bytes | None) -> str:
    """Publish the list to the proxies if they refresh their prices. Returns the operator's next step, in words."""
    from proxy.ledger.price_list import replace_list

    if settings.prices.refresh is None:
        return "restart the proxies"
    if not replace_list(store.engine, state.version, version, content, time.time()):
        raise Failure("a proxy has refreshed the prices meanwhile: repeat the command")
    return "running proxies apply it within seconds"


def _refresh(options: argparse.Namespace) -> None:
    from proxy.runtime.machine.price_check import book_in_use, newest, record

    settings = load_settings(options.config)
    refresh = settings.prices.refresh
    if refresh is None:
        raise Failure("prices.refresh is not set: write `prices: {refresh: {}}`, or use `tokenweir prices update`")
    with store_of(options) as store:
        state, before = book_in_use(settings, store.engine)
        accepted = _asked(lambda client: newest(client, refresh, settings, before))
        found = [*accepted.changes, *accepted.refused]
        if options.json:
            for one in found:
                print(json_line(_model_json(one)))
        elif found:
            print_table(PRICE_CHANGES, _rows(found))
        if not options.dry_run and not record(store.engine, state, accepted, refresh.every_s):
            raise Failure("a proxy has refreshed the prices meanwhile: repeat the command")
    then = "nothing was applied" if options.dry_run else "running proxies apply it within seconds"
    counts = f"{len(accepted.changes)} models changed, {len(accepted.refused)} refused ({accepted.book.version})"
    print(f"tokenweir: {counts}; {then}", file=sys.stderr)


def _asked(call: Callable[[UpstreamClient], Coroutine[Any, Any, _T]]) -> _T:
    """The result of a call that needs a client for HTTP."""
    from proxy.gateway.upstream.client import UpstreamClient

    async def work() -> _T:
        client = UpstreamClient()
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(work())


def _content(source: str) -> bytes:
    """The content of a file, or of an http or https URL. Raises PriceFileError, SettingsError."""
    from proxy.runtime.machine.price_check import fetched
    from proxy.runtime.machine.price_file import read_list
    from proxy.settings.outbound import proxy_of_environment
    from proxy.settings.price_refresh import RefreshSettings

    if not source.startswith(("http://", "https://")):
        return read_list(Path(source))
    address = RefreshSettings(source=source, proxy=proxy_of_environment(source, os.environ))
    return _asked(lambda client: fetched(client, address))


def _model_json(change: ModelChange) -> dict[str, Any]:
    prices = [
        {"price": one.price, "above_prompt_tokens": one.above_prompt_tokens, "old": _usd(one.old), "new": _usd(one.new)}
        for one in change.prices
    ]
    of = {"provider": change.provider, "model": change.model, "since": iso_utc(change.since)}
    return {**of, "prices": prices, "refused": change.refused or None}


def _rows(found: Iterable[ModelChange]) -> Iterator[dict[str, Any]]:
    """The rows of the table: one for each price, in USD."""
    for change in found:
        result = f"refused: {change.refused}" if change.refused else "applies"
        of = {"provider": change.provider, "model": change.model, "since": iso_utc(change.since), "result": result}
        for one in change.prices:
            yield {**of, "price": one.name, "old": _usd(one.old), "new": _usd(one.new)}


def _show(options: argparse.Namespace) -> None:
    settings = load_settings(options.config)
    shown = _own_book(settings) if settings.prices.refresh is None else _refreshed_book(options, settings)
    if options.json:
        print(json_line(shown))
        return
    for name, value in shown.items():
        for one in value if isinstance(value, list) else [value]:
            print(f"{name}: {'–' if one is None else one}")


def _own_book(settings: Settings) -> dict[str, Any]:
    from proxy.runtime.machine.price_file import path_in, price_book

    book, file = price_book(settings.data_dir), path_in(settings.data_dir)
    since = iso_utc(file.stat().st_mtime) if file.exists() else None
    return {"list": book.version, "since": since, "from": str(file) if file.exists() else "the installed package"}


def _refreshed_book(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    from proxy.runtime.machine.price_check import book_in_use

    refresh = settings.prices.refresh
    assert refresh is not None, "the caller has looked"
    with store_of(options) as store:
        state, book = book_in_use(settings, store.engine)
    times = {"since": state.accepted_at, "checked": state.checked_at, "next_check": state.next_at or None}
    return {
        "list": book.version,
        **{name: None if at is None else iso_utc(at) for name, at in times.items()},
        "from": refresh.source,
        "failed": state.error,
        "refused": list(state.refused),
    }


def _diff(options: argparse.Namespace) -> None:
    for change in _changes(options, _content(options.source)):
        print(_change_line(options, change))


def _changes(options: argparse.Namespace, content: bytes) -> list[PriceChange]:
    """The changes from the current price book to the one in `content`."""
    from proxy.runtime.machine.price_file import book_from, changes, price_book

    applies = price_book(load_settings(options.config).data_dir)
    return list(changes(applies, book_from(content, options.source), time.time()))


def _change_line(options: argparse.Namespace, change: PriceChange) -> str:
    if not options.json:
        return f"{change.provider} {change.model} {change.text}"
    usd = {"old": _usd(change.old), "new": _usd(change.new)}
    return json_line({**change._asdict(), **usd, "suspicious": change.suspicious})


def _usd(nusd: int | None) -> str | None:
    return None if nusd is None else usd_text(nusd)


_PACKAGE = "package"


def _why(options: argparse.Namespace) -> None:
    settings, now = load_settings(options.config), time.time()
    at = now if options.at is None else options.at
    found = route(settings.models, options.model)
    if found is None:
        raise UnknownNameError(f"models: {options.model!r} is not configured")
    served_as = service_of(options.tier, options.speed, options.geography)
    named = (options.key, options.project, options.organization)
    payer = Payer(*(name for name in named for name in (name, name)))
    for of, price in _listed(settings, *found, at, payer, options.model):
        explained = {
            "model": options.model,
            "at": iso_utc(at),
            **of,
            **_explanation(price, options.prompt_tokens, served_as),
        }
        for line in [json_line(explained)] if options.json else _lines(explained):
            print(line)


def _listed(
    settings: Settings, model: ModelSettings, passed: str, at: float, payer: Payer, requested: str
) -> Iterator[tuple[dict[str, str], Price | None]]:
    """The price list of the charge, then the price list of the cost at each provider, each with its label."""
    from proxy.runtime.machine.price_file import price_book
    from proxy.runtime.machine.price_lookup import PriceLookup

    lookup = PriceLookup(settings, price_book(settings.data_dir))

    def of(kind: str, lists: PriceLists | None, target: TargetSettings) -> dict[str, str]:
        source = "the built-in book" if lists is None else "the configuration"
        name = target.upstream_model or passed
        return {"price_of": kind, "provider": target.provider, "upstream_model": name, "source": source}

    first = model.providers[0]
    yield of("charge", model.price, first), lookup.admitted(model, passed, first, at, payer, requested).price
    for target in model.providers:
        yield of("cost", target.cost, target), lookup.admitted(model, passed, target, at, payer, requested).cost


def _explanation(price: Price | None, prompt_tokens: int, served_as: ServedAs) -> dict[str, Any]:
    if price is None:
        return {"price": None}
    by = applied(price, served_as)
    return {
        "price": price_text(price, prompt_tokens, served_as),
        "tiers_above_prompt_tokens": [rates.above_prompt_tokens for rates in price.tiers[1:]],
        "not_applied": {reason: factor for reason, factor in price.multipliers.items() if reason not in by}
        | {f"tier:{name}": "a list of its own" for name in price.service_tiers if name != served_as.service_tier},
        "without_price": unpriced_service(price, served_as),
        "lacking": list(price.lacking),
    }


def _lines(explained: dict[str, Any]) -> Iterator[str]:
    from proxy.reports.explain import multiplier_text

    price = explained["price"]
    where = f"{explained['upstream_model']} at {explained['provider']}"
    if price is None:
        yield f"{explained['price_of']}: unknown: {explained['source']} has no price for {where}"
        return
    yield f"{explained['price_of']}: by {explained['source']} ({price['version']}), for {where}"
    rates = {name: rate for name, rate in price.items() if name not in _NO_RATES}
    if rates:
        yield "  " + ", ".join(f"{name} {rate}" for name, rate in rates.items())
    if "service_tier" in price:
        yield f"  the list of service tier {price['service_tier']}"
    if above := price.get("above_prompt_tokens"):
        yield f"  for prompts above {above} tokens"
    for reason, factor in price.get("multipliers", {}).items():
        yield f"  {multiplier_text(reason, factor)}, in the prices above"
    if "stated" in price:
        yield f"  answers that state their cost: that × {' × '.join(price['stated'])}, instead of these prices"
    for name in explained["lacking"]:
        yield f"  no price for {name} tokens: an answer with such tokens alone is unpriced"
    for word in explained["without_price"]:
        yield f"  no price for {word}: list prices apply"
    if explained["not_applied"]:
        yield "  not applied: " + ", ".join(f"{reason} ({by})" for reason, by in explained["not_applied"].items())


_NO_RATES = frozenset({"version", "above_prompt_tokens", "service_tier", "multipliers", "stated"})

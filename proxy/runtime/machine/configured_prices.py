"""Which prices of the configuration have changed, and who has changed them: for the audit log.

Invariants: a file in the data folder has the prices that the proxy applied last. Each difference from it is recorded
once, by the operator of `tokenweir reload`, or else by the user whose process applies them. If the ledger cannot be
reached, the file stays as it is, and the next start or reload records the difference.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from proxy.billing.money import usd_text
from proxy.billing.pricing.rules import PriceRule
from proxy.billing.record import Price
from proxy.foundation.files import replace_text
from proxy.foundation.users import operator
from proxy.ledger.accounts.audit_log import Actor, AuditLog
from proxy.settings import Settings
from proxy.settings.prices import PriceLists

APPLIED_FILE, REQUEST_FILE = "applied-prices.json", "reload-request.json"
ACTION = "prices.change"
# An operator who asks for a reload is the one whom it is for, if it follows within this time.
REQUEST_S = 60.0
# Audit entries of one change; of a change of more models, one entry has the number.
OPERATIONS_MAX = 100
# Audit entries among which the same change of another machine is looked for.
LOOKED_AT = 500
NOTHING = "none"

Prices = Mapping[str, Mapping[str, str]]
"""model or rule → name of the price → USD, as text"""


class ReloadRequest(msgspec.Struct, frozen=True):
    """The operator who runs `tokenweir reload`."""

    by: str
    origin: str
    at: float
    """Unix seconds"""


def request_reload(data_dir: Path, by: str) -> None:
    """Name the operator for the reload that follows. Raises OSError."""
    request = ReloadRequest(by, socket.gethostname(), time.time())
    replace_text(data_dir / REQUEST_FILE, msgspec.json.encode(request).decode())


def prices_of(settings: Settings) -> Prices:
    """The prices of a configuration, without those of the price book."""
    found: dict[str, dict[str, str]] = {}
    for name, model in settings.models.items():
        found[name] = dict(_in_steps("", model.price))
        for target in model.providers:
            found[name] |= _in_steps(f"cost at {target.provider}: ", target.cost)
    for name, rule in settings.price_rules.items():
        found[f"price_rules.{name}"] = dict(_of_rule(rule))
    return {name: prices for name, prices in found.items() if prices}


def prices_in(price: Price | None) -> dict[str, str]:
    """The prices of a list by their names."""
    return {} if price is None else dict(_of_price(price))


def changes(before: Prices, now: Prices) -> dict[str, dict[str, str]]:
    """Model or rule → price → `3 → 3.6`, for the prices that differ."""
    found = {}
    for name in {**before, **now}:
        old, new = before.get(name, {}), now.get(name, {})
        differing = {
            price: f"{old.get(price, NOTHING)} → {new.get(price, NOTHING)}"
            for price in {**old, **new}
            if old.get(price) != new.get(price)
        }
        if differing:
            found[name] = differing
    return found


def record_changes(settings: Settings, audit_log: AuditLog) -> None:
    """Record the prices that differ from those applied last. Raises LedgerUnavailable, OSError."""
    file, now = settings.data_dir / APPLIED_FILE, prices_of(settings)
    before, by = _applied(file), _actor(settings.data_dir)
    if before == now:
        return
    if before is not None:
        recorded = {(one.target, msgspec.json.encode(one.details)) for one in audit_log.latest(LOOKED_AT)}
        for target, details in _operations(changes(before, now)):
            if (target, msgspec.json.encode(details)) not in recorded:
                with audit_log.operation(by, ACTION, target, details):
                    pass
    replace_text(file, msgspec.json.encode(now).decode())


def _operations(found: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str | None, Mapping[str, Any]]]:
    return found.items() if len(found) <= OPERATIONS_MAX else [(None, {"models": len(found)})]


def _applied(file: Path) -> Prices | None:
    """None: not known, as at the first start."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, str]])
    except (OSError, msgspec.MsgspecError):
        return None


def _actor(data_dir: Path) -> Actor:
    """The operator of the reload that was requested last, or the user of this process."""
    file = data_dir / REQUEST_FILE
    with suppress(OSError, msgspec.MsgspecError):
        request = msgspec.json.decode(file.read_bytes(), type=ReloadRequest)
        file.unlink()
        if time.time() - request.at < REQUEST_S:
            return Actor(request.by, "cli", request.origin)
    return Actor(operator(), "cli", socket.gethostname())


def _in_steps(of: str, lists: PriceLists | None) -> Iterator[tuple[str, str]]:
    for start, price in () if lists is None else lists.steps:
        since = "" if start == -math.inf else f" from {datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M} UTC"
        for name, usd in _of_price(price):
            yield f"{of}{name}{since}", usd


def _of_price(price: Price) -> Iterator[tuple[str, str]]:
    for tier, rates in [("", price.tiers), *((f" ({name})", own) for name, own in price.service_tiers.items())]:
        for one in rates:
            above = f" above {one.above_prompt_tokens} tokens" if one.above_prompt_tokens else ""
            for name, nusd in msgspec.structs.asdict(one).items():
                is_default = name == "cached_input" and nusd == one.input
                if name != "above_prompt_tokens" and nusd is not None and not is_default:
                    yield f"{name}{above}{tier}", usd_text(nusd)
    for reason, factor in price.multipliers.items():
        yield f"multiplier {reason}", factor


def _of_rule(rule: PriceRule) -> Iterator[tuple[str, str]]:
    for one in fields(rule):
        value = getattr(rule, one.name)
        if one.name == "name" or value == one.default or value is None:
            continue
        if isinstance(value, Price):
            yield from _of_price(value)
        elif isinstance(value, frozenset | tuple):
            yield one.name, " ".join(sorted(map(str, value)))
        else:
            yield one.name, str(value)

"""`tokenweir usage`: tokens, charges and costs by end user, session, run, tag, key, project or model.

Invariant: the rows add up to the last one, the total.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from proxy.billing.dimensions import NAMED, TAG
from proxy.billing.money import usd_text
from proxy.cli.common import Failure, WrongUsage, store_of, with_config
from proxy.cli.dimension_options import add_dimension_filters, dimension_filter, dimension_name
from proxy.cli.output import add_list_options, print_list
from proxy.cli.values import Whole, moment_text, time_zone
from proxy.foundation.times import since_from

if TYPE_CHECKING:
    from proxy.ledger.accounts.owners import Owner
    from proxy.reports.dimensions import ShownDimension
    from proxy.reports.tables import Table
    from proxy.reports.usage import UsageFilter, UsageTotals
    from proxy.runtime.machine.ledger_stores import LedgerStores

_PLAIN = ("key", "project", "model")
_LIMIT = 1_000
# Of `--daily`: rows in memory at a time, and the most of one day.
_ROWS_MAX = 100_000


def add_commands(commands: Any) -> None:
    usage = with_config(commands, "usage", "print tokens, charges and costs, by usage date, in whole days", _usage)
    usage.add_argument(
        "--by",
        type=_group,
        action="append",
        default=[],
        metavar="GROUP",
        help=f"a row for each {', '.join(NAMED)}, tag:NAME, {', '.join(_PLAIN)}; repeatable: for each combination",
    )
    usage.add_argument("--daily", action="store_true", help="separate rows for each day")
    usage.add_argument(
        "--since", type=moment_text, metavar="TIME", help="from this day on: 2026-11-01, 7d (default: the last 30 days)"
    )
    usage.add_argument("--until", type=moment_text, metavar="TIME", help="before this day")
    usage.add_argument(
        "--time-zone",
        type=time_zone,
        metavar="ZONE",
        help="the time zone of days and times: Europe/Berlin (default: UTC)",
    )
    usage.add_argument("--key", metavar="KEY_ID|ALIAS", help="only this key")
    usage.add_argument("--project", metavar="ID|NAME", help="only this project")
    usage.add_argument("--model", metavar="MODEL", help="only this model")
    add_dimension_filters(usage)
    usage.add_argument(
        "--limit",
        type=Whole(1, _ROWS_MAX),
        metavar="N",
        help=f"the N rows with the highest charge (default: {_LIMIT:,})",
    )
    add_list_options(usage)


def _group(text: str) -> str:
    """The type of `--by`."""
    try:
        return text if text in _PLAIN else dimension_name(text)
    except argparse.ArgumentTypeError:
        words = f"must be {', '.join((*NAMED, *_PLAIN))} or tag:NAME, not {text!r}"
        raise argparse.ArgumentTypeError(words) from None


def _usage(options: argparse.Namespace) -> None:
    dimensions = [name for name in options.by if name not in _PLAIN]
    if len(dimensions) > 1:
        raise WrongUsage(
            f"--by: {' and '.join(dimensions)} cannot be combined: give one of end_user, session, run and tags"
        )
    if options.daily and options.limit is not None:
        raise WrongUsage("--limit: cannot be combined with --daily")
    with store_of(options) as store:
        wanted = _wanted(store, options, dimensions)
        rows = list(_rows(store, options, wanted))
    print_list(options, _table(options), rows)


def _wanted(store: LedgerStores, options: argparse.Namespace, dimensions: Sequence[str]) -> UsageFilter:
    """Raises UnknownNameError, ValueError."""
    from proxy.billing.keys import AccountKind
    from proxy.reports.buckets import DAY_S, Buckets
    from proxy.reports.usage import UsageFilter

    now, buckets = time.time(), Buckets(DAY_S, options.time_zone)
    begin = buckets.floor(now - 29 * DAY_S if options.since is None else _moment(options, options.since, now))
    end = buckets.ceil(int(now + 1) if options.until is None else int(_moment(options, options.until, now)))
    if end <= begin:
        raise WrongUsage("--until: must be after --since")
    project = None if options.project is None else store.accounts.one(options.project, AccountKind.PROJECT).account_id
    return UsageFilter(
        begin=begin,
        end=end,
        bucket_s=DAY_S,
        time_zone=options.time_zone,
        is_total=not options.daily,
        by_key="key" in options.by,
        by_project="project" in options.by,
        by_model="model" in options.by,
        by_dimension=dimensions[0] if dimensions else None,
        keys=None if options.key is None else {store.keys.one(options.key).key_id},
        projects=None if project is None else {project},
        models=None if options.model is None else {options.model},
        dimensions=dimension_filter(store, options),
    )


def _moment(options: argparse.Namespace, text: str, now: float) -> float:
    """The value of `--since` or `--until`; Unix seconds."""
    return since_from(text, now, _zone(options))


def _zone(options: argparse.Namespace) -> tzinfo:
    return UTC if options.time_zone is None else ZoneInfo(options.time_zone)


def _rows(store: LedgerStores, options: argparse.Namespace, wanted: UsageFilter) -> Iterator[dict[str, Any]]:
    """A row for each group, one for the groups that are left out, and the total."""
    from proxy.reports.usage import read_usage

    every = replace(wanted, is_total=True, by_key=False, by_project=False, by_model=False, by_dimension=None)
    total, _ = read_usage(store.engine, every, 1)
    if options.daily or options.by:
        found = list(_totals(store, options, wanted))
        names = _Names(store, found, wanted)
        zone = _zone(options) if options.daily else None
        yield from ({**names.of(one, zone), **_numbers([one])} for one in found)
        rest = _numbers(total, less=found)
        if any(number not in (0, "0") for number in rest.values()):
            yield {"left_out": True, **rest}
    yield {"total": True, **_numbers(total)}


def _totals(store: LedgerStores, options: argparse.Namespace, wanted: UsageFilter) -> Iterator[UsageTotals]:
    """Raises Failure if a day has too many rows."""
    from proxy.reports.usage import read_usage

    if not options.daily:
        yield from read_usage(store.engine, wanted, options.limit or _LIMIT)[0]
        return
    while wanted.begin < wanted.end:
        found, upto = read_usage(store.engine, wanted, _ROWS_MAX)
        if upto == wanted.begin:
            day = datetime.fromtimestamp(upto, _zone(options)).date()
            raise Failure(f"--daily: {day} has more than {_ROWS_MAX:,} rows: filter, or group by less")
        yield from found
        wanted = replace(wanted, begin=upto)


class _Names:
    """The name of the groups, for the header of the table."""

    def __init__(self, store: LedgerStores, totals: Sequence[UsageTotals], wanted: UsageFilter) -> None:
        from proxy.ledger.accounts.owners import owners_of

        self._wanted = wanted
        ids = {one for total in totals for one in (total.key_id, total.project_id) if one is not None}
        self._owners: dict[str, Owner] = owners_of(store.engine, ids)
        shown = store.dimension_values().shown(one.value_id for one in totals if one.value_id is not None)
        self._shown: dict[str, ShownDimension] = shown

    def of(self, total: UsageTotals, zone: tzinfo | None) -> dict[str, Any]:
        """The fields that name a group. `zone`: the time zone of its day; None: the group has no day."""
        day = None if zone is None else datetime.fromtimestamp(total.begin, zone).date()
        fields: dict[str, Any] = {} if day is None else {"day": str(day)}
        wanted = self._wanted
        if wanted.by_dimension is not None:
            shown = None if total.value_id is None else self._shown[total.value_id]
            fields[wanted.by_dimension] = None if shown is None else shown._asdict()
        for name, scope_id, is_wanted in (
            ("key", total.key_id, wanted.by_key), ("project", total.project_id, wanted.by_project),
        ):  # fmt: skip
            if is_wanted:
                owner = self._owners.get(scope_id or "")
                fields |= {f"{name}_id": scope_id, name: None if owner is None else owner.name}
        return fields | ({"model": total.model} if wanted.by_model else {})


def _numbers(totals: Sequence[UsageTotals], less: Sequence[UsageTotals] = ()) -> dict[str, Any]:
    """The sums of the totals, without those of `less`."""

    def sum_of(name: str) -> int:
        found: int = sum(getattr(one, name) for one in totals) - sum(getattr(one, name) for one in less)
        return found

    return {
        "requests": sum_of("requests"),
        **{name: sum_of(name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")},
        "charge_usd": usd_text(sum_of("charge_nusd")),
        "cost_usd": usd_text(sum_of("cost_nusd")),
        "unpriced_requests": sum_of("unpriced"),
        "unknown_cost_requests": sum_of("unknown_cost"),
    }


def _table(options: argparse.Namespace) -> Table:
    """The columns of the groups, and those of the numbers."""
    from proxy.reports.dimensions import NONE, ShownDimension
    from proxy.reports.tables import Column, Table

    groups = [*(["day"] if options.daily else []), *options.by] or ["total"]

    def named(name: str, at: int) -> Any:
        def cell(row: dict[str, Any]) -> str:
            if "total" in row or "left_out" in row:
                return ("total" if "total" in row else "(others)") if at == 0 else ""
            value = row[name]
            if name in _PLAIN or name == "day":
                return str(value or row.get(f"{name}_id") or NONE)
            return NONE if value is None else ShownDimension(**value).text

        return cell

    # Of a terminal's 80 characters, the day and the charge need 28: a cut amount would be a wrong one.
    share = 80 if options.wide else max(8, (64 - 12 * options.daily) // max(1, len(options.by)) - 2)
    widths = {"key": 20, "project": 20, "model": 22}
    columns = {
        name: Column(
            name.removeprefix(TAG).upper().replace("_", " "),
            10 if name == "day" else min(share, widths.get(name, 30)),
            named(name, at),
        )
        for at, name in enumerate(groups)
    }
    numbers = {
        "requests": ("REQUESTS", 9), "prompt_tokens": ("PROMPT", 10), "cached_tokens": ("CACHED", 10),
        "completion_tokens": ("OUTPUT", 10), "charge_usd": ("CHARGE USD", 14), "cost_usd": ("COST USD", 14),
        "unpriced_requests": ("UNPRICED", 8), "unknown_cost_requests": ("UNKNOWN COST", 12),
    }  # fmt: skip
    for name, (title, width) in numbers.items():
        columns[name] = Column(title, width, _number(name), right=True)
    usual = (*groups, "requests", "prompt_tokens", "completion_tokens", "charge_usd", "cost_usd")
    return Table(columns, usual, left_out=("cost_usd", "prompt_tokens", "completion_tokens", "requests"))


def _number(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: str(row[name])

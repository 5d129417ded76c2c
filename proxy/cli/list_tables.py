"""The tables of the commands that list keys, accounts, months, … : columns over the rows that `--json` prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from proxy.foundation.times import iso_utc
from proxy.reports.dimensions import ShownDimension
from proxy.reports.tables import Column, Table

Row = dict[str, Any]

# In a list for people: enough of an id to name a dead letter.
_ID_CHARS = 12


def _field(name: str) -> Callable[[Row], str]:
    return lambda row: "–" if row.get(name) is None else str(row[name])


def _moment(name: str, chars: int = 16) -> Callable[[Row], str]:
    return lambda row: "–" if row.get(name) is None else _minute(row[name])[:chars]


def _limit(name: str) -> Callable[[Row], str]:
    return lambda row: str(row["limits"].get(name, "–"))


def _state(row: Row) -> str:
    return "revoked" if row.get("revoked_at") else "blocked" if row["blocked_at"] else "active"


def _state_severity(row: Row) -> str | None:
    return {"revoked": "error", "blocked": "warning"}.get(_state(row))


def _scope(row: Row) -> str:
    """The name of a budget's owner."""
    deleted = " (deleted)" if row.get("deleted") else ""
    credit = " (less credit)" if row["counter_id"] != row["scope_id"] else ""
    if row.get("dimensions"):
        return f"{row['name']}: {', '.join(_texts(row).values())}{deleted}"
    return f"{row['scope_kind'] or ''} {row['name'] or row['scope_id']}{credit}{deleted}".strip()


def _texts(row: Row) -> dict[str, str]:
    """Dimension → value, of the requests that a budget counts."""
    return {name: ShownDimension(**one).text for name, one in (row.get("dimensions") or {}).items()}


def _counted(row: Row) -> str:
    return ", ".join(f"{name}={text}" for name, text in _texts(row).items()) or "–"


def _budget_notes(row: Row) -> str:
    """`prepaid`, `alert only`, `+10 until 2026-12-02`."""
    limits, raised = row["limits"], row["limits"].get("raised")
    notes = [name.replace("_", " ") for name in ("prepaid", "alert_only") if limits.get(name)]
    return ", ".join([*notes, *([f"+{raised['usd']} until {raised['until'][:10]}"] if raised else [])])


def _grant_state(row: Row) -> str:
    """`planned from 2026-12-01 00:00`, `usable until 2027-01-01 00:00`, `used up`, `revoked 2026-12-24 17:30`."""
    now = iso_utc(time.time())
    ends = min(filter(None, (row["expires_at"], row["revoked_at"])), default=None)
    if ends is not None and ends <= now:
        return f"{'revoked' if row['revoked_at'] == ends else 'expired'} {_minute(ends)}"
    if _is_planned(row):
        return f"planned from {_minute(row['begins_at'])}"
    if row["granted_usd"] != "0" and row["left_usd"] == "0":
        return "used up"
    return "usable, without an end" if ends is None else f"usable until {_minute(ends)}"


def _is_planned(row: Row) -> bool:
    return bool(row["begins_at"] > iso_utc(time.time()))


def _minute(moment: str) -> str:
    return moment[:16].replace("T", " ")


def _quotas(row: Row) -> str:
    return ", ".join(f"{most} {name.replace('_', ' ')}" for name, most in row["limits"].get("quotas", {}).items())


def _further(row: Row) -> str:
    """The further properties of a limit: alerts, rates, quotas."""
    return ", ".join(filter(None, (_budget_notes(row), _rates(row), _quotas(row)))) or "–"


def _rates(row: Row) -> str:
    return ", ".join(f"{name} {row['limits'][name]}" for name in ("rpm", "tpm", "parallel") if name in row["limits"])


def _amount(of_money: str, of_quota: str) -> Callable[[Row], str]:
    """A column of money, or of the amounts of quotas."""

    def text(row: Row) -> str:
        quota = row["quota"]
        if quota is None:
            return str(row[of_money] if row[of_money] is not None else "–")
        amount = quota[of_quota]
        unit = f" {quota['measure'].replace('_', ' ')}" if of_quota == "max" else ""
        return "–" if amount is None else f"{amount}{unit}"

    return text


_STATE = Column("STATE", 7, _state, severity=_state_severity)
_BUDGET = Column("BUDGET USD", 12, _limit("budget_usd"), right=True)
_WINDOW = Column("WINDOW", 14, _limit("budget_window"))

KEYS = Table(
    {
        "alias": Column("ALIAS", 20, _field("alias")),
        "key_id": Column("ID", 24, _field("key_id")),
        "state": _STATE,
        "expires": Column("EXPIRES", 10, _moment("expires_at", 10)),
        "budget": _BUDGET,
        "window": _WINDOW,
        "project": Column("PROJECT", 25, _field("project_id")),
        "models": Column("MODELS", 0, lambda row: "all" if row["models"] is None else ", ".join(row["models"])),
    },
    ("alias", "key_id", "state", "expires", "budget", "window", "models"),
    left_out=("models", "window", "budget", "expires"),
)
ACCOUNTS = Table(
    {
        "name": Column("NAME", 20, _field("name")),
        "account_id": Column("ID", 25, _field("account_id")),
        "kind": Column("KIND", 12, _field("kind")),
        "state": _STATE,
        "budget": _BUDGET,
        "window": _WINDOW,
        "parent": Column("ORGANIZATION", 24, _field("parent_id")),
    },
    ("name", "account_id", "kind", "state", "budget", "window"),
    left_out=("window", "budget", "state"),
)
RULES = Table(
    {
        "name": Column("NAME", 18, _field("name")),
        "rule_id": Column("ID", 25, _field("rule_id")),
        "split_by": Column("FOR EACH", 10, lambda row: ", ".join(row["split_by"] or ()) or "–"),
        "budget": Column("BUDGET USD", 10, _limit("budget_usd"), right=True),
        "window": _WINDOW,
        "rates": Column(
            "FURTHER LIMITS",
            20,
            _further,
        ),
        "zone": Column("TIME ZONE", 16, _limit("time_zone")),
        "required": Column("REQUIRED", 8, lambda row: "yes" if row["required"] else "no"),
        "fallback": Column("FALLBACK", 18, _field("fallback_model")),
        "providers": Column("PROVIDERS", 18, lambda row: ", ".join(row["providers"] or ()) or "–"),
        "scope": Column("OF", 25, _field("scope_id")),
        "only": Column("ONLY", 20, lambda row: ", ".join(f"{k}={v}" for k, v in (row["only"] or {}).items()) or "–"),
        "change": Column("CHANGE WITH", 32, _field("change_with")),
        "models": Column("MODELS", 0, lambda row: "all" if row["models"] is None else ", ".join(row["models"])),
    },
    ("name", "rule_id", "split_by", "budget", "window", "rates", "scope", "only", "models"),
    left_out=("only", "models", "scope", "rule_id"),
)
GRANTS = Table(
    {
        "name": Column("NAME", 16, _field("name")),
        "scope": Column("OF", 14, _field("scope_name")),
        "state": Column("STATE (UTC)", 29, _grant_state),
        "grant_id": Column("ID", 28, _field("grant_id")),
        "usd": Column("USD", 10, _field("usd"), right=True),
        "left": Column("LEFT USD", 12, lambda row: "–" if _is_planned(row) else row["left_usd"], right=True),
        "burned": Column("USED USD", 12, _field("burned_usd"), right=True),
        "expired": Column("EXPIRED USD", 12, _field("expired_usd"), right=True),
        "begins": Column("BEGINS (UTC)", 16, _moment("begins_at")),
        "expires": Column("EXPIRES (UTC)", 16, _moment("expires_at")),
        "recurs": Column("RECURS", 14, _field("recurs")),
        "zone": Column("TIME ZONE", 16, _field("time_zone")),
        "priority": Column("PRIORITY", 8, _field("priority"), right=True),
    },
    ("name", "scope", "state", "usd", "left", "recurs", "grant_id"),
    left_out=("grant_id", "recurs", "usd"),
)
PERIODS = Table(
    {
        "month": Column("MONTH", 7, _field("month")),
        "closed": Column("CLOSED (UTC)", 16, _moment("closed_at")),
        "by": Column("BY", 12, _field("closed_by")),
        "entries": Column("ENTRIES", 11, _field("entries"), right=True),
        "archive": Column("ARCHIVE", 24, lambda row: row["archive"]["file"] if row["archive"] else "–"),
        "digest": Column("DIGEST", 0, _field("digest")),
    },
    ("month", "closed", "by", "entries", "archive", "digest"),
    left_out=("digest", "archive"),
)
SINKS = Table(
    {
        "sink": Column("SINK", 16, _field("sink")),
        "kind": Column("KIND", 12, _field("kind")),
        "state": Column(
            "STATE", 10, _field("state"),
            severity=lambda row: {"failing": "error", "behind": "warning", "up_to_date": "ok"}.get(row["state"]),
        ),
        "sent": Column("SENT", 9, _field("sent"), right=True),
        "pending": Column("PENDING", 8, _field("pending"), right=True),
        "rejected": Column("REJECTED", 8, lambda row: str(len(row.get("rejected", ()))), right=True),
        "error": Column("LAST ERROR", 0, _field("last_error")),
    },
    ("sink", "kind", "state", "sent", "pending", "rejected", "error"),
    left_out=("error", "kind"),
)  # fmt: skip
AUDIT = Table(
    {
        "time": Column("TIME (UTC)", 19, _moment("at", 19)),
        "actor": Column("ACTOR", 12, _field("actor")),
        "via": Column("VIA", 7, _field("via")),
        "origin": Column("ORIGIN", 16, _field("origin")),
        "action": Column("ACTION", 19, _field("action")),
        "target": Column("TARGET", 16, _field("target")),
        "result": Column(
            "RESULT", 0,
            lambda row: row["result"] if row["message"] is None else f"{row['result']}: {row['message']}",
            severity=lambda row: None if row["result"] == "done" else "error",
        ),
    },
    ("time", "actor", "via", "origin", "action", "target", "result"),
    left_out=("origin", "via", "actor"),
)  # fmt: skip
BUDGETS = Table(
    {
        "scope": Column("SCOPE", 30, _scope),
        "since": Column("USAGE SINCE", 16, _moment("window_start")),
        "budget": Column("BUDGET", 19, _amount("budget_usd", "max"), right=True),
        "spent": Column("SPENT", 12, _amount("spent_usd", "used"), right=True),
        "held": Column("HELD", 12, _amount("held_usd", "held"), right=True),
        "running": Column("RUNNING", 7, _field("running"), right=True),
        "unsettled": Column("UNSETTLED", 9, _field("unsettled"), right=True),
        "counted": Column("OF REQUESTS WITH", 0, _counted),
    },
    ("scope", "since", "budget", "spent", "held", "running", "unsettled"),
    left_out=("unsettled", "running", "since"),
)
DEAD_LETTERS = Table(
    {
        "id": Column("ID", _ID_CHARS, lambda row: row["id"][:_ID_CHARS]),
        "seen": Column("LAST SEEN (UTC)", 19, _moment("last_seen", 19)),
        "times": Column("TIMES", 5, _field("times_seen"), right=True),
        "exchange": Column("EXCHANGE", 36, _field("exchange_id")),
        "reason": Column("REASON", 0, _field("reason"), severity=lambda _: "error"),
    },
    ("id", "seen", "times", "exchange", "reason"),
    left_out=("exchange", "times"),
)
PRICE_CHANGES = Table(
    {
        "provider": Column("PROVIDER", 12, _field("provider")),
        "model": Column("MODEL", 28, _field("model")),
        "price": Column("PRICE", 16, _field("price")),
        "old": Column("OLD", 9, _field("old"), right=True),
        "new": Column("NEW", 9, _field("new"), right=True),
        "since": Column("SINCE (UTC)", 16, _moment("since")),
        "result": Column(
            "RESULT", 0, _field("result"), severity=lambda row: None if row["result"] == "applies" else "warning"
        ),
    },
    ("provider", "model", "price", "old", "new", "since", "result"),
    left_out=("since", "provider", "old"),
)
SIMULATED = Table(
    {
        "key": Column("KEY", 16, _field("key_alias")),
        "model": Column("MODEL", 20, _field("model")),
        "exchanges": Column("EXCHANGES", 9, _field("exchanges"), right=True),
        "charge": Column("CHARGE USD", 13, _field("charge_usd"), right=True),
        "simulated_charge": Column("SIMULATED", 13, _field("simulated_charge_usd"), right=True),
        "cost": Column("COST USD", 13, _field("cost_usd"), right=True),
        "simulated_cost": Column("SIMULATED", 13, _field("simulated_cost_usd"), right=True),
    },
    ("key", "model", "exchanges", "charge", "simulated_charge", "cost", "simulated_cost"),
    left_out=("simulated_cost", "cost", "exchanges"),
)
RERATED = Table(
    {
        "key": Column("KEY", 20, _field("key_alias")),
        "key_id": Column("ID", 24, _field("key_id")),
        "adjusted": Column("ADJUSTED", 9, _field("adjusted"), right=True),
        "charge": Column("CHARGE USD +/-", 14, _field("charge_usd"), right=True),
        "cost": Column("COST USD +/-", 14, _field("cost_usd"), right=True),
    },
    ("key", "key_id", "adjusted", "charge", "cost"),
    left_out=("key_id", "cost"),
)
DRIFT = Table(
    {
        "counter": Column("COUNTER", 40, _field("counter_id")),
        "drift": Column(
            "DIFFERENCE USD",
            16,
            lambda row: str(row["drift_usd"]) if "drift_usd" in row else f"{row['drift']} {row['measure']}",
            right=True,
        ),
    },
    ("counter", "drift"),
)

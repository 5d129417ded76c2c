"""*Money*: what is billed, what it costs, and how much of it is estimated. From the ledger itself, in Postgres.

Days are UTC. Sums by day, key and model come from `usage_daily`, which corrections move too; what is not in it is asked
of the entries by when they were settled, which has an index.
"""

from __future__ import annotations

from grafana.panels import BAD, GOOD, Board, Panel, Query, Variable

_DAYS = (
    "d.day BETWEEN ($__timeFrom()::timestamptz AT TIME ZONE 'UTC')::date"
    " AND ($__timeTo()::timestamptz AT TIME ZONE 'UTC')::date"
)
_CHOSEN = "'$key' IN ('%', {0}.key_id) AND '$model' IN ('%', {0}.model)"
_USAGE = f"FROM usage_daily d WHERE {_DAYS} AND {_CHOSEN.format('d')}"
_ENTRIES = f"FROM ledger_entries e WHERE $__timeFilter(e.settled_at) AND {_CHOSEN.format('e')}"
_AT = "(d.day::timestamp AT TIME ZONE 'UTC') AS time"
_SUMS = (
    'sum(d.charged_usd) AS "charge", sum(d.cost_usd) AS "cost", sum(d.charged_usd) - sum(d.cost_usd) AS "margin", '
    '(sum(d.charged_usd) - sum(d.cost_usd)) / nullif(sum(d.charged_usd), 0) AS "margin, of the charge", '
    'sum(d.prompt_tokens)::bigint AS "tokens in", sum(d.completion_tokens)::bigint AS "tokens out", '
    'sum(d.entries)::bigint AS "entries"'
)
_MONEY = {
    "charge": "currencyUSD",
    "cost": "currencyUSD",
    "margin": "currencyUSD",
    "margin, of the charge": "percentunit",
}


def _table(text: str) -> list[Query]:
    return [Query(text, sql=True, shape="table")]


def _series(text: str) -> list[Query]:
    return [Query(text, sql=True)]


MONEY = Board(
    uid="tokenweir-money",
    title="Money",
    says="What keys are billed and providers charge, from the ledger. Days are UTC.",
    since="now-30d",
    refresh="1m",
    variables=[
        Variable(
            "key", "Key", "SELECT alias || ' (…' || hint || ')' AS __text, key_id AS __value FROM api_keys ORDER BY 1",
            sql=True,
        ),
        Variable("model", "Model", "SELECT DISTINCT model FROM usage_daily ORDER BY 1", sql=True),
    ],
    panels=[
        Panel(
            title="In these days", kind="stat", width=12, height=4, unit="currencyUSD",
            says="Charge: what keys are billed. Cost: what providers charge, where it is known. Corrections included.",
            units={"margin, of the charge": "percentunit"},
            queries=_table(
                'SELECT sum(d.charged_usd) AS "charge", sum(d.cost_usd) AS "cost", sum(d.charged_usd) - '
                'sum(d.cost_usd) AS "margin", (sum(d.charged_usd) - sum(d.cost_usd)) / nullif(sum(d.charged_usd), 0) '
                f'AS "margin, of the charge" {_USAGE}'
            ),
        ),
        Panel(
            title="Estimated, of the charge", kind="stat", width=4, height=4, unit="percentunit",
            says="The part of what was billed that no provider has reported. Settled in this time.",
            queries=_table(
                "SELECT coalesce(sum(e.charge_usd) FILTER (WHERE e.usage_source = 'estimated') / "
                f'nullif(sum(e.charge_usd), 0), 0) AS "estimated" {_ENTRIES} AND e.kind = \'usage\''
            ),
        ),
        Panel(
            title="Billed nothing: no price", kind="stat", width=4, height=4,
            says="Exchanges that were served though no price is known. `tokenweir rerate` bills them after all.",
            limits=[(None, GOOD), (1, BAD)],
            queries=_table(f'SELECT count(*) AS "unpriced" {_ENTRIES} AND e.kind = \'usage\' AND e.charge_usd IS NULL'),
        ),
        Panel(
            title="Cost not known", kind="stat", width=4, height=4,
            says="Exchanges that count as free in costs and margins here, for nobody knows what the provider charges.",
            queries=_table(f'SELECT count(*) AS "unknown" {_ENTRIES} AND e.kind = \'usage\' AND e.cost_usd IS NULL'),
        ),
        Panel(
            title="Charge per day, by model", unit="currencyUSD", width=12, bars=True, stacked=True,
            says="What keys are billed.",
            queries=_series(
                f"SELECT {_AT}, d.model AS metric, sum(d.charged_usd) AS value {_USAGE} GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="Charge per day, by key", unit="currencyUSD", width=12, bars=True, stacked=True,
            says="The ten keys that are billed most in these days; the others as one.",
            queries=_series(
                f"WITH first AS (SELECT d.key_id {_USAGE} GROUP BY 1 ORDER BY sum(d.charged_usd) DESC LIMIT 10) "
                f"SELECT {_AT}, CASE WHEN f.key_id IS NULL THEN 'others' ELSE k.alias || ' (…' || k.hint || ')' END "
                "AS metric, sum(d.charged_usd) AS value FROM usage_daily d JOIN api_keys k USING (key_id) "
                f"LEFT JOIN first f USING (key_id) WHERE {_DAYS} AND {_CHOSEN.format('d')} GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="Charge, cost and margin per day", unit="currencyUSD", width=12,
            says="Where the cost is not known it counts as 0.",
            queries=_series(
                f'SELECT {_AT}, sum(d.charged_usd) AS "charge", sum(d.cost_usd) AS "cost", '
                f'sum(d.charged_usd) - sum(d.cost_usd) AS "margin" {_USAGE} GROUP BY d.day ORDER BY 1'
            ),
        ),
        Panel(
            title="Estimated, of the charge, per day", unit="percentunit", width=12,
            says="By the day of settlement and by model: where usage does not come.",
            queries=_series(
                "SELECT date_trunc('day', e.settled_at, 'UTC') AS time, e.model AS metric, coalesce(sum(e.charge_usd) "
                "FILTER (WHERE e.usage_source = 'estimated') / nullif(sum(e.charge_usd), 0), 0) AS value "
                f"{_ENTRIES} AND e.kind = 'usage' GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="By key", kind="table", width=12, height=9, units=_MONEY,
            says="Whoever is billed most comes first.",
            queries=_table(
                f"SELECT k.alias AS \"key\", '…' || k.hint AS \"ends in\", k.project_id AS \"project\", {_SUMS} "
                f"FROM usage_daily d JOIN api_keys k USING (key_id) WHERE {_DAYS} AND {_CHOSEN.format('d')} "
                "GROUP BY k.key_id ORDER BY 4 DESC LIMIT 100"
            ),
        ),
        Panel(
            title="By model", kind="table", width=12, height=9, units=_MONEY,
            says="As clients asked for them.",
            queries=_table(f'SELECT d.model AS "model", {_SUMS} {_USAGE} GROUP BY d.model ORDER BY 2 DESC LIMIT 100'),
        ),
        Panel(
            title="By project", kind="table", width=12, height=9, units=_MONEY,
            says="Where budgets of several keys meet.",
            queries=_table(
                f'SELECT k.project_id AS "project", {_SUMS} FROM usage_daily d JOIN api_keys k USING (key_id) '
                f"WHERE {_DAYS} AND {_CHOSEN.format('d')} GROUP BY k.project_id ORDER BY 2 DESC LIMIT 100"
            ),
        ),
        Panel(
            title="Dearest exchanges", kind="table", width=12, height=9,
            units={"charge": "currencyUSD", "cost": "currencyUSD"},
            says="Settled in this time. `tokenweir ledger --exchange ID --explain` says what a charge is the sum of.",
            queries=_table(
                'SELECT e.started_at AS "begun", e.key_alias AS "key", e.model AS "model", e.outcome AS "outcome", '
                'e.usage_source AS "counted", e.prompt_tokens AS "tokens in", e.completion_tokens AS "tokens out", '
                f'e.charge_usd AS "charge", e.cost_usd AS "cost", e.exchange_id AS "exchange" {_ENTRIES} '
                "AND e.kind = 'usage' AND e.charge_usd > 0 ORDER BY e.charge_usd DESC LIMIT 20"
            ),
        ),
    ],
)  # fmt: skip

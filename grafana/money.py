"""*Money*: charges, costs, and the estimated share. From the ledger on Postgres.

Days are UTC. Sums by day, key and model come from `usage_daily`, which includes corrections; other numbers come
from the entries by time of settlement, which has an index.
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
    '(sum(d.charged_usd) - sum(d.cost_usd)) / nullif(sum(d.charged_usd), 0) AS "margin share", '
    'sum(d.prompt_tokens)::bigint AS "tokens in", sum(d.completion_tokens)::bigint AS "tokens out", '
    'sum(d.entries)::bigint AS "entries"'
)
_MONEY = {
    "charge": "currencyUSD",
    "cost": "currencyUSD",
    "margin": "currencyUSD",
    "margin share": "percentunit",
}


def _table(text: str) -> list[Query]:
    return [Query(text, sql=True, shape="table")]


def _series(text: str) -> list[Query]:
    return [Query(text, sql=True)]


MONEY = Board(
    uid="tokenweir-money",
    title="Money",
    says="Charges of keys and costs of providers, from the ledger. Days are UTC, by usage date: a correction counts on "
    "the day of its exchange. Statements are as billed: they list it in the month of its booking.",
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
            title="Totals of the selected days", kind="stat", width=12, height=4, unit="currencyUSD",
            says="Charge: billed to keys. Cost: charged by providers, if known. Corrections are included.",
            units={"margin share": "percentunit"},
            queries=_table(
                'SELECT sum(d.charged_usd) AS "charge", sum(d.cost_usd) AS "cost", sum(d.charged_usd) - '
                'sum(d.cost_usd) AS "margin", (sum(d.charged_usd) - sum(d.cost_usd)) / nullif(sum(d.charged_usd), 0) '
                f'AS "margin share" {_USAGE}'
            ),
        ),
        Panel(
            title="Estimated share of the charge", kind="stat", width=4, height=4, unit="percentunit",
            says="Charges without reported usage, as a share. By time of settlement.",
            queries=_table(
                "SELECT coalesce(sum(e.charge_usd) FILTER (WHERE e.usage_source = 'estimated') / "
                f'nullif(sum(e.charge_usd), 0), 0) AS "estimated" {_ENTRIES} AND e.kind = \'usage\''
            ),
        ),
        Panel(
            title="Exchanges without a price", kind="stat", width=4, height=4,
            says="Served exchanges without a charge. Configure a price, then bill them with `tokenweir rerate`.",
            limits=[(None, GOOD), (1, BAD)],
            queries=_table(f'SELECT count(*) AS "unpriced" {_ENTRIES} AND e.kind = \'usage\' AND e.charge_usd IS NULL'),
        ),
        Panel(
            title="Exchanges without a cost", kind="stat", width=4, height=4,
            says="Exchanges with an unknown provider price. Their cost counts as 0 on this dashboard.",
            queries=_table(f'SELECT count(*) AS "unknown" {_ENTRIES} AND e.kind = \'usage\' AND e.cost_usd IS NULL'),
        ),
        Panel(
            title="Charge per day, by model", unit="currencyUSD", width=12, bars=True, stacked=True,
            says="Charges of keys.",
            queries=_series(
                f"SELECT {_AT}, d.model AS metric, sum(d.charged_usd) AS value {_USAGE} GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="Charge per day, by key", unit="currencyUSD", width=12, bars=True, stacked=True,
            says="The ten keys with the highest charges; all others as one.",
            queries=_series(
                f"WITH first AS (SELECT d.key_id {_USAGE} GROUP BY 1 ORDER BY sum(d.charged_usd) DESC LIMIT 10) "
                f"SELECT {_AT}, CASE WHEN f.key_id IS NULL THEN 'others' ELSE k.alias || ' (…' || k.hint || ')' END "
                "AS metric, sum(d.charged_usd) AS value FROM usage_daily d JOIN api_keys k USING (key_id) "
                f"LEFT JOIN first f USING (key_id) WHERE {_DAYS} AND {_CHOSEN.format('d')} GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="Charge, cost and margin per day", unit="currencyUSD", width=12,
            says="An unknown cost counts as 0.",
            queries=_series(
                f'SELECT {_AT}, sum(d.charged_usd) AS "charge", sum(d.cost_usd) AS "cost", '
                f'sum(d.charged_usd) - sum(d.cost_usd) AS "margin" {_USAGE} GROUP BY d.day ORDER BY 1'
            ),
        ),
        Panel(
            title="Estimated share of the charge per day", unit="percentunit", width=12,
            says="Charges without reported usage, as a share, by day of settlement and model.",
            queries=_series(
                "SELECT date_trunc('day', e.settled_at, 'UTC') AS time, e.model AS metric, coalesce(sum(e.charge_usd) "
                "FILTER (WHERE e.usage_source = 'estimated') / nullif(sum(e.charge_usd), 0), 0) AS value "
                f"{_ENTRIES} AND e.kind = 'usage' GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="By key", kind="table", width=12, height=9, units=_MONEY,
            says="Highest charges first.",
            queries=_table(
                f"SELECT k.alias AS \"key\", '…' || k.hint AS \"ends in\", k.project_id AS \"project\", {_SUMS} "
                f"FROM usage_daily d JOIN api_keys k USING (key_id) WHERE {_DAYS} AND {_CHOSEN.format('d')} "
                "GROUP BY k.key_id ORDER BY 4 DESC LIMIT 100"
            ),
        ),
        Panel(
            title="By model", kind="table", width=12, height=9, units=_MONEY,
            says="By the requested name.",
            queries=_table(f'SELECT d.model AS "model", {_SUMS} {_USAGE} GROUP BY d.model ORDER BY 2 DESC LIMIT 100'),
        ),
        Panel(
            title="By project", kind="table", width=12, height=9, units=_MONEY,
            says="Highest charges first.",
            queries=_table(
                f'SELECT k.project_id AS "project", {_SUMS} FROM usage_daily d JOIN api_keys k USING (key_id) '
                f"WHERE {_DAYS} AND {_CHOSEN.format('d')} GROUP BY k.project_id ORDER BY 2 DESC LIMIT 100"
            ),
        ),
        Panel(
            title="Exchanges with the highest charges", kind="table", width=12, height=9,
            units={"charge": "currencyUSD", "cost": "currencyUSD"},
            says="By time of settlement. The console and `tokenweir ledger --explain` show the parts of a charge.",
            queries=_table(
                'SELECT e.started_at AS "start", e.key_alias AS "key", e.model AS "model", e.outcome AS "outcome", '
                'e.usage_source AS "source", e.prompt_tokens AS "tokens in", e.completion_tokens AS "tokens out", '
                f'e.charge_usd AS "charge", e.cost_usd AS "cost", e.exchange_id AS "exchange" {_ENTRIES} '
                "AND e.kind = 'usage' AND e.charge_usd > 0 ORDER BY e.charge_usd DESC LIMIT 20"
            ),
        ),
    ],
)  # fmt: skip

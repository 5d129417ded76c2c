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
# Daily sums, and as `unknown_usd` the charges of exchanges with an unknown cost, which no margin includes.
_SPEND = (
    "(SELECT day, key_id, model, charged_usd, cost_usd, 0 AS unknown_usd, prompt_tokens, completion_tokens, entries "
    "FROM usage_daily UNION ALL SELECT (e.started_at AT TIME ZONE 'UTC')::date, e.key_id, e.model, 0, 0, "
    "coalesce(sum(line.charge_usd), 0), 0, 0, 0 FROM ledger_entries e JOIN ledger_entries line USING (exchange_id) "
    "WHERE e.kind = 'usage' AND e.cost_usd IS NULL AND line.kind IN ('usage', 'adjustment') "
    "AND e.started_at >= date_trunc('day', $__timeFrom()::timestamptz, 'UTC') "
    "GROUP BY exchange_id, 1, 2, 3 HAVING max(line.cost_usd) IS NULL)"
)
_MARGINS = f"FROM {_SPEND} d WHERE {_DAYS} AND {_CHOSEN.format('d')}"
_USAGE = f"FROM usage_daily d WHERE {_DAYS} AND {_CHOSEN.format('d')}"
_ENTRIES = f"FROM ledger_entries e WHERE $__timeFilter(e.settled_at) AND {_CHOSEN.format('e')}"
_AT = "(d.day::timestamp AT TIME ZONE 'UTC') AS time"
_MARGIN = "sum(d.charged_usd - d.unknown_usd - d.cost_usd)"
_AMOUNTS = (
    f'sum(d.charged_usd) AS "charge", sum(d.cost_usd) AS "cost", {_MARGIN} AS "margin", '
    f'{_MARGIN} / nullif(sum(d.charged_usd - d.unknown_usd), 0) AS "margin share", '
    'sum(d.unknown_usd) AS "charge, cost unknown"'
)
_SUMS = (
    f'{_AMOUNTS}, sum(d.prompt_tokens)::bigint AS "tokens in", sum(d.completion_tokens)::bigint AS "tokens out", '
    'sum(d.entries)::bigint AS "requests"'
)
_MONEY = {
    "charge": "currencyUSD",
    "cost": "currencyUSD",
    "margin": "currencyUSD",
    "margin share": "percentunit",
    "charge, cost unknown": "currencyUSD",
}


def _table(text: str) -> list[Query]:
    return [Query(text, sql=True, shape="table")]


def _series(text: str) -> list[Query]:
    return [Query(text, sql=True)]


MONEY = Board(
    uid="tokenweir-money",
    title="Money",
    says="Charges of keys and costs of providers, from the ledger. Days are UTC, by usage date: a correction counts on "
    "the day of its request. Statements are as billed: they list it in the month of its booking.",
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
            title="Totals", kind="stat", width=12, height=4, unit="currencyUSD",
            says="Charge: billed to keys. Cost: charged by providers, if known. The margin is that of requests with a "
            "known cost. Corrections are included.",
            link="usage",
            units={"margin share": "percentunit"},
            queries=_table(f"SELECT {_AMOUNTS} {_MARGINS}"),
        ),
        Panel(
            title="Estimated share of charges", kind="stat", width=4, height=4, unit="percentunit",
            says="Share of the charges whose usage the provider did not report. By time of settlement.",
            link="requests?usage_source=estimated",
            queries=_table(
                "SELECT coalesce(sum(e.charge_usd) FILTER (WHERE e.usage_source = 'estimated') / "
                f'nullif(sum(e.charge_usd), 0), 0) AS "estimated" {_ENTRIES} AND e.kind = \'usage\''
            ),
        ),
        Panel(
            title="Unpriced requests", kind="stat", width=4, height=4,
            says="Requests without a charge, because their model has no price. Configure a price, then bill them with "
            "`tokenweir rerate`.",
            link="usage?by=model",
            limits=[(None, GOOD), (1, BAD)],
            queries=_table(f'SELECT count(*) AS "unpriced" {_ENTRIES} AND e.kind = \'usage\' AND e.charge_usd IS NULL'),
        ),
        Panel(
            title="Requests of unknown cost", kind="stat", width=4, height=4,
            says="Requests whose provider's price is unknown. No cost and no margin includes them.",
            link="usage?by=model",
            queries=_table(f'SELECT count(*) AS "unknown" {_ENTRIES} AND e.kind = \'usage\' AND e.cost_usd IS NULL'),
        ),
        Panel(
            title="Charge per day, by model", unit="currencyUSD", width=12, bars=True, stacked=True,
            says="Charges of keys.",
            link="usage?by=model",
            queries=_series(
                f"SELECT {_AT}, d.model AS metric, sum(d.charged_usd) AS value {_USAGE} GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="Charge per day, by key", unit="currencyUSD", width=12, bars=True, stacked=True,
            says="The ten keys with the highest charges; all others together.",
            link="usage?by=key",
            queries=_series(
                f"WITH first AS (SELECT d.key_id {_USAGE} GROUP BY 1 ORDER BY sum(d.charged_usd) DESC LIMIT 10) "
                f"SELECT {_AT}, CASE WHEN f.key_id IS NULL THEN 'Other' ELSE k.alias || ' (…' || k.hint || ')' END "
                "AS metric, sum(d.charged_usd) AS value FROM usage_daily d JOIN api_keys k USING (key_id) "
                f"LEFT JOIN first f USING (key_id) WHERE {_DAYS} AND {_CHOSEN.format('d')} GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="Charge, cost and margin per day", unit="currencyUSD", width=12,
            says="The margin is that of requests with a known cost.",
            queries=_series(
                f'SELECT {_AT}, sum(d.charged_usd) AS "charge", sum(d.cost_usd) AS "cost", '
                f'{_MARGIN} AS "margin" {_MARGINS} GROUP BY d.day ORDER BY 1'
            ),
        ),
        Panel(
            title="Estimated share of charges per day", unit="percentunit", width=12,
            says="Share of the charges whose usage the provider did not report, by day of settlement and model.",
            queries=_series(
                "SELECT date_trunc('day', e.settled_at, 'UTC') AS time, e.model AS metric, coalesce(sum(e.charge_usd) "
                "FILTER (WHERE e.usage_source = 'estimated') / nullif(sum(e.charge_usd), 0), 0) AS value "
                f"{_ENTRIES} AND e.kind = 'usage' GROUP BY 1, 2 ORDER BY 1"
            ),
        ),
        Panel(
            title="By key", kind="table", width=12, height=9, units=_MONEY,
            says="Highest charges first.",
            link="keys",
            queries=_table(
                f"SELECT k.alias AS \"key\", '…' || k.hint AS \"ends in\", k.project_id AS \"project\", {_SUMS} "
                f"FROM {_SPEND} d JOIN api_keys k USING (key_id) WHERE {_DAYS} AND {_CHOSEN.format('d')} "
                "GROUP BY k.key_id ORDER BY 4 DESC LIMIT 100"
            ),
        ),
        Panel(
            title="By model", kind="table", width=12, height=9, units=_MONEY,
            says="By the requested name.",
            queries=_table(f'SELECT d.model AS "model", {_SUMS} {_MARGINS} GROUP BY d.model ORDER BY 2 DESC LIMIT 100'),
        ),
        Panel(
            title="By project", kind="table", width=12, height=9, units=_MONEY,
            says="Highest charges first.",
            link="customers",
            queries=_table(
                f'SELECT k.project_id AS "project", {_SUMS} FROM {_SPEND} d JOIN api_keys k USING (key_id) '
                f"WHERE {_DAYS} AND {_CHOSEN.format('d')} GROUP BY k.project_id ORDER BY 2 DESC LIMIT 100"
            ),
        ),
        Panel(
            title="Most expensive requests", kind="table", width=12, height=9,
            units={"charge": "currencyUSD", "cost": "currencyUSD"},
            says="By time of settlement. An id opens the request in the console, with the parts of its charge; "
            "`tokenweir exchange` prints them.",
            links={"request": "requests/${__value.raw}"},
            queries=_table(
                'SELECT e.started_at AS "start", e.key_alias AS "key", e.model AS "model", e.outcome AS "outcome", '
                'e.usage_source AS "source", e.prompt_tokens AS "tokens in", e.completion_tokens AS "tokens out", '
                f'e.charge_usd AS "charge", e.cost_usd AS "cost", e.exchange_id AS "request" {_ENTRIES} '
                "AND e.kind = 'usage' AND e.charge_usd > 0 ORDER BY e.charge_usd DESC LIMIT 20"
            ),
        ),
    ],
)  # fmt: skip

"""A ledger with a past: rows by the million, made inside Postgres, in the shape and the order of real ones.

Law: twelve months in their monthly partitions, a thousand keys, every column set; balances and usage by day are the
sums of the entries, as after settling.
"""

from __future__ import annotations

import time
from typing import Final

from proxy.ledger.schema.partitions import make_partitions
from tests.bench.records import KEYS, MODELS
from tests.bench.stores import Ledger

MONTHS: Final = 12
DAYS: Final = 365
_DAY_S: Final = 86_400

_ENTRIES = f"""
INSERT INTO ledger_entries
SELECT gen_random_uuid()::text,
       substr(id, 1, 8) || '-' || substr(id, 9, 4) || '-7' || substr(noise, 1, 3) || '-8' || substr(noise, 4, 3)
           || '-' || substr(noise, 7, 12),
       'usage', 'key_' || lpad(to_hex(key), 20, '0'), 'team-' || key, 'bench', 'model-' || key % {MODELS},
       'upstream/model-' || key % {MODELS} || '-2026-11-01', '/v1/chat/completions', true, 'served', 'stop',
       'reported', '2026-11', 1000 + i % 1000, 500, 400, 100, 1400 + i % 1000, 400, 112000,
       (i % 99991) / 1e9, (i % 99991) * 1.25 / 1e9, '2026-11-01', 'chatcmpl-' || noise, to_timestamp(at), 231.5,
       8100.25,
       jsonb_build_object('billed', 'prompt+output', 'expected_error', 0.05, 'price', '2026-11-01: 0.1 0.05 0.4 per M',
                          'cost', '2026-11-01: 0.08 0.04 0.32 per M'),
       0, noise || noise, to_timestamp(at + 1), 'history', i
FROM (SELECT i, (i::bigint * 7919) % {KEYS} AS key, md5(i::text) AS noise, at,
             lpad(to_hex((at * 1000)::bigint), 12, '0') AS id
      FROM (SELECT i, {{began}} + i::float8 * {{step}} AS at FROM generate_series({{first}}, {{last}}) AS i)) AS made
"""
_SUMS = (
    "sum(charge_usd), sum(cost_usd), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), "
    "sum(reasoning_tokens), sum(total_tokens), count(*) FROM ledger_entries"
)
_AFTER = (
    f"INSERT INTO balances SELECT key_id, {_SUMS} GROUP BY key_id",
    f"INSERT INTO usage_daily SELECT (started_at AT TIME ZONE 'UTC')::date, key_id, model, {_SUMS} GROUP BY 1, 2, 3",
    "VACUUM ANALYZE",
    "CHECKPOINT",
)


def fill(ledger: Ledger, rows: int) -> None:
    """Put so many entries into an empty ledger, the oldest a year ago, the newest now."""
    now = time.time()
    for month in range(MONTHS + 1):
        make_partitions(ledger.engine, now - month * 30.5 * _DAY_S)
    began, step = now - DAYS * _DAY_S, DAYS * _DAY_S / rows
    part = 500_000
    for first in range(1, rows + 1, part):
        last = min(first + part - 1, rows)
        ledger.do(_ENTRIES.format(began=began, step=step, first=first, last=last))
    ledger.do(*_AFTER)

"""A ledger with a million keys, made inside Postgres.

Law: nine in ten keys have a budget; each of them has used something on three of the last thirty days; half of the
projects, and so half of the keys, belong to one organization.
"""

from __future__ import annotations

from hashlib import md5
from typing import Final

from tests.bench.stores import Ledger

BIGGEST: Final = "org_0"
_ORGANIZATIONS: Final = 100
_KEY = "'key_' || substr(md5(i::text), 1, 20)"
_ROWS = """
INSERT INTO accounts
SELECT 'org_' || i, 'organization', NULL, 'customer ' || i, NULL, now() - interval '90 days', NULL, 10 + i
FROM generate_series(0, {organizations} - 1) AS i;

INSERT INTO accounts
SELECT 'proj_' || i, 'project', 'org_' || CASE i % 2 WHEN 0 THEN 0 ELSE i % {organizations} END, 'project ' || i,
       NULL, now() - interval '90 days', NULL, 1000 + i
FROM generate_series(0, {projects} - 1) AS i;

INSERT INTO api_keys (key_id, alias, digest, hint, created_at, revision, project_id, limits)
SELECT {key}, 'customer key ' || i, sha256(('secret' || i)::bytea), 'tw-…' || i % 10000,
       now() - interval '90 days' + i * interval '1 second', 1000000 + i, 'proj_' || i % {projects},
       CASE i % 10 WHEN 0 THEN NULL ELSE jsonb_build_object('budget_usd', 5000000000, 'budget_window', '30d') END
FROM generate_series(0, {keys} - 1) AS i;

INSERT INTO balances
SELECT {key}, 0.001234566, 0.0009, 3000, 0, 600, 0, 3600, 3 FROM generate_series(0, {keys} - 1) AS i;

INSERT INTO usage_daily
SELECT (now() AT TIME ZONE 'UTC')::date - (i + day) % 30, {key}, 'model-' || i % 8, 0.000411522, 0.0003, 1000, 0, 200,
       0, 1200, 1
FROM generate_series(0, {keys} - 1) AS i, generate_series(0, 20, 10) AS day;

VACUUM ANALYZE;

CHECKPOINT
"""


def key_id(number: int) -> str:
    """Of one of the keys."""
    return f"key_{md5(str(number).encode(), usedforsecurity=False).hexdigest()[:20]}"


def fill(ledger: Ledger, *, keys: int, projects: int) -> None:
    """Put so many into an empty ledger."""
    ledger.do(*_ROWS.format(keys=keys, projects=projects, organizations=_ORGANIZATIONS, key=_KEY).split(";"))

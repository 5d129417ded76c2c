"""An index, by time, of the entries with an unknown charge or cost."""

from __future__ import annotations

from proxy.migrations import steps

revision = "0011_from_0006"
down_revision = "0010_from_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    steps.create_index(
        "ix_ledger_entries_unknown_amount",
        "ledger_entries",
        ["started_at"],
        where="kind = 'usage' AND (cost_usd IS NULL OR charge_usd IS NULL)",
    )

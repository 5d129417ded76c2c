"""Indexes of the credits of a key, and of the ids of providers' responses."""

from __future__ import annotations

from proxy.migrations import steps

revision = "0020_from_0006"
down_revision = "0019_from_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    steps.create_index("ix_ledger_entries_credits", "ledger_entries", ["key_id", "charge_usd"], where="kind = 'credit'")
    steps.create_index(
        "ix_ledger_entries_provider_response_id",
        "ledger_entries",
        ["provider_response_id"],
        where="kind = 'usage' AND provider_response_id IS NOT NULL",
    )

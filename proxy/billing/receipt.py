"""The line of one entry on a statement, and the digests that commit to it.

Invariants: a line has all that its owner may see of the entry (never a provider's cost), and gives the same bytes for
ever: JSON with sorted names, without spaces, in UTF-8; counts are integers, money is text. So anybody can calculate the
digests from the file, with any JSON library.

The digest of a key's or account's month is the root of the Merkle tree over the lines of its entries, ordered by
exchange, kind and number. That of several (the keys below an account, or everybody) is the root of the tree over their
`scope_leaf`, ordered by id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.billing.entries import TOKENS, EntryKind
from proxy.billing.merkle import MerkleTree, leaf_hash
from proxy.billing.money import usd_text
from proxy.foundation.times import iso_utc

FORMAT = 1
"""the version of these rules, stored with every digest that is given away"""

EMPTY = MerkleTree().root.hex()
"""the digest of no entries"""

BOOKED = (EntryKind.ADJUSTMENT, EntryKind.CREDIT)
"""the kinds that state a reason"""

Line = Mapping[str, Any]


def line_of(row: Any) -> dict[str, Any]:
    """The line of an entry. `row`: its fields, `settled_at`, and its details `units` and `why`."""
    line: dict[str, Any] = {
        "charge_usd": None if row.charge_nusd is None else usd_text(row.charge_nusd),
        "endpoint": row.endpoint,
        "exchange_id": row.exchange_id,
        "key_id": row.key_id,
        "kind": row.kind,
        "model": row.model,
        "outcome": row.outcome,
        "seq": row.seq,
        "settled_at": iso_utc(row.settled_at),
        "started_at": iso_utc(row.started_at),
        "units": row.units or {},
        "usage_source": row.usage_source,
    }
    line |= {name: getattr(row, name) for name in TOKENS}
    if row.kind in BOOKED:
        line["why"] = str(row.why or "")
    return line


def order_of(line: Line) -> tuple[str, str, int]:
    """Where a line stands among those of its key or account. Raises KeyError."""
    return line["exchange_id"], line["kind"], line["seq"]


def line_leaf(line: Line) -> bytes:
    """The leaf of a line."""
    return leaf_hash(msgspec.json.encode(line, order="sorted"))


def scope_leaf(scope_id: str, digest: str) -> bytes:
    """The leaf of a key or account in the tree over several. `digest`: hexadecimal. Raises ValueError."""
    return leaf_hash(scope_id.encode() + b"\0" + bytes.fromhex(digest))


def digest_of(digests: Mapping[str, str]) -> str:
    """The digest of several keys and accounts, from the digest of each by its id. Raises ValueError."""
    return MerkleTree(scope_leaf(scope_id, digests[scope_id]) for scope_id in sorted(digests)).root.hex()

"""The parts of other packages that files and batches use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from proxy.billing.batch import StoredBatch
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import UsageRecord
from proxy.ledger.stored_objects.batches import BatchStore
from proxy.ledger.stored_objects.files import FileStore
from proxy.storage.executor import InThread


@dataclass(frozen=True, slots=True)
class BatchPorts:
    """Made once a process, by runtime."""

    files: FileStore
    batches: BatchStore
    in_thread: InThread
    """runs the calls of `files` and `batches`, which block"""
    node: str
    """the name of this process among those that poll batches"""
    settle: Callable[[Sequence[UsageRecord]], Awaitable[None]]
    """returns when the ledger has the records. Raises OSError"""
    recorded: Callable[[Collection[str]], Awaitable[set[str]]]
    """exchange ids → those whose entries the ledger has. Raises OSError"""
    reserve_again: Callable[[Sequence[StoredBatch]], Awaitable[None]]
    """reserves again for batches that another process has admitted"""
    payer: Callable[[str], Awaitable[Payer]]
    """key id → its payer. Raises OSError"""

"""The exchanges of a journal that are not settled, read by another process.

Invariants: reading takes no lock and writes nothing, so a proxy may use the journal meanwhile. The result may include
an exchange that has just been settled, and never lacks one that was opened before the call.
"""

from __future__ import annotations

from pathlib import Path

from proxy.journal.frames import FrameKind, UndecodableError, decode_envelope, decode_opened, decode_seqs, scan
from proxy.journal.segment import SUFFIX


def unsettled_exchanges(folder: Path) -> set[str]:
    """The ids of the exchanges that are open, or whose records have no receipt yet. Raises OSError."""
    opened: set[str] = set()
    closed: dict[int, str] = {}
    settled: set[int] = set()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            frames = scan(path.read_bytes()).frames
        except FileNotFoundError:  # all its records have just been settled
            continue
        for frame in frames:
            try:
                if frame.kind == FrameKind.OPEN:
                    opened.add(decode_opened(frame.payload).exchange_id)
                elif frame.kind == FrameKind.CLOSE:
                    closed[frame.seq] = decode_envelope(frame.payload).opened.exchange_id
                    settled.discard(frame.seq)  # it is pending again: the ledger has lost it
                elif frame.kind == FrameKind.SETTLED:
                    settled |= set(decode_seqs(frame.payload))
            except UndecodableError:  # of a later version, or damaged: the journal quarantines and logs it
                continue
    return opened - set(closed.values()) | {one for seq, one in closed.items() if seq not in settled}

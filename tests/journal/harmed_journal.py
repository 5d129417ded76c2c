"""A journal's file, cut off or with one byte flipped, at every offset from FIRST to before LAST. Prints JSON.

    python harmed_journal.py IMAGE cut|flip FIRST LAST SEED

For each the journal is opened as at a start. It must say what is wrong, keep the file as it was found aside, and give
out exactly what the frames that are whole come to: `wrong` names the offsets where it did otherwise. One that hangs
ends this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from proxy.journal.frames import Frame, FrameKind, decode_envelope, decode_opened, decode_seqs, scan
from proxy.journal.journal import Journal
from tests.journal.records import ROOMY

NAME = f"{0:020d}.log"
OPEN_S_MAX = 10
MEMORY = Path("/dev/shm")  # a private folder in it; no power is cut here

State = tuple[dict[int, bytes], set[str]]
"""the pending records by seq, the open exchanges"""


def state_after(frames: Iterable[Frame]) -> State:
    """What a journal is to know that has these frames."""
    pending: dict[int, bytes] = {}
    open_ids: set[str] = set()
    for frame in frames:
        if frame.kind == FrameKind.OPEN:
            open_ids.add(decode_opened(frame.payload).exchange_id)
        elif frame.kind == FrameKind.CLOSE:
            open_ids.discard(decode_envelope(frame.payload).opened.exchange_id)
            pending[frame.seq] = frame.payload
        else:
            for seq in decode_seqs(frame.payload):
                pending.pop(seq, None)
    return pending, open_ids


def holding(folder: Path, image: bytes) -> Journal:
    """The journal whose only file holds `image`."""
    for old in (*folder.glob("*.log"), *folder.glob("quarantine/*")):
        old.unlink()
    (folder / NAME).write_bytes(image)
    signal.alarm(OPEN_S_MAX)
    journal = Journal.open(folder, bytes_max=ROOMY)
    signal.alarm(0)
    return journal


def differs(journal: Journal, expected: State) -> Iterator[str]:
    """What it gives out otherwise."""
    if {one.seq: one.payload for one in journal.pending(sys.maxsize)} != expected[0]:
        yield "other records"
    if {one.exchange_id for one in journal.unfinished()} != expected[1]:
        yield "other exchanges are open"


def wrong_when_cut(folder: Path, image: bytes, cuts: Sequence[int]) -> Iterator[str]:
    """A torn tail is no damage, but for what the frames before it come to."""
    frames = scan(image).frames
    whole = [frame for frame in frames if frame.offset + frame.length <= cuts[0]]
    end, expected = sum(frame.length for frame in whole), state_after(whole)
    for cut in cuts:
        while len(whole) < len(frames) and (following := frames[len(whole)]).offset + following.length <= cut:
            whole.append(following)
            end, expected = following.offset + following.length, state_after(whole)
        journal = holding(folder, image[:cut])
        yield from (f"cut at {cut}: {what}" for what in differs(journal, expected))
        if (journal.damage, journal.torn_bytes) != ([], cut - end):
            yield f"cut at {cut}: {journal.damage}, {journal.torn_bytes} bytes torn"
        journal.close()


def wrong_when_flipped(folder: Path, image: bytes, positions: Sequence[int], rng: Random) -> Iterator[str]:
    """The frame of that byte is lost, and no other."""
    frames = scan(image).frames
    harmed = bytearray(image)
    hit, expected = None, state_after(())
    for position in positions:
        if hit is None or hit.offset + hit.length <= position:
            hit = next(frame for frame in frames if frame.offset + frame.length > position)
            expected = state_after(frame for frame in frames if frame is not hit)
        harmed[position] ^= rng.randrange(1, 256)
        journal = holding(folder, bytes(harmed))
        yield from (f"flipped at {position}: {what}" for what in differs(journal, expected))
        said = [(damage.offset, damage.length) for damage in journal.damage]
        if said != [(hit.offset, hit.length)]:
            yield f"flipped at {position}: it says {journal.damage}"
        elif (folder / "quarantine" / (journal.damage[0].kept_as or "")).read_bytes() != harmed:
            yield f"flipped at {position}: not kept aside as it was found"
        journal.close()
        harmed[position] = image[position]


def main() -> None:
    path, kind, first, last, seed = sys.argv[1:]
    for name in ("fsync", "fdatasync"):
        setattr(os, name, lambda _fd: None)
    image, part = Path(path).read_bytes(), range(int(first), int(last))
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        Journal.open(Path(folder), bytes_max=ROOMY).close()  # from now on its node has a name
        if kind == "cut":
            wrong = list(wrong_when_cut(Path(folder), image, part))
        else:
            wrong = list(wrong_when_flipped(Path(folder), image, part, Random(seed)))
    print(json.dumps({"tried": len(part), "wrong": wrong[:20], "wrong_count": len(wrong)}))


if __name__ == "__main__":
    main()

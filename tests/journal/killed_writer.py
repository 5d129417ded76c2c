"""Kill -9 of a process that journals, again and again on the same folder. Prints JSON.

    python killed_writer.py FOLDER ROUNDS

The child acknowledges each step over a pipe after it; the parent kills it at a random instant and holds the journal and
the progress table against all that was ever acknowledged. One step may have happened without its acknowledgement.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from proxy.journal import log
from proxy.journal.journal import Journal
from proxy.journal.progress import ProgressTable, Slot
from tests.journal.journals import crash
from tests.journal.records import ROOMY, exchange_id, opened, record

SEGMENT_BYTES = 32_768  # small, so that files come and go within a round


@dataclass
class Known:
    open: dict[int, int] = field(default_factory=dict)
    """number → slot"""
    delivered: dict[int, int] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    count: int = 0

    def take(self, step: str) -> None:
        verb, number, more = step.split()
        self.count += 1
        match verb:
            case "begin":
                self.open[int(number)] = int(more)
                self.delivered[int(number)] = 0
            case "deliver":
                self.delivered[int(number)] = int(more)
            case "finish":
                self.open.pop(int(number), None)
                self.pending.add(int(number))
            case "settled":
                self.pending.discard(int(number))
                self.settled.add(int(number))


def number_of(exchange: str) -> int:
    return int(exchange[-12:], 16)


def work(folder: Path, pipe: int, rng: random.Random, first: int) -> None:
    """Journal until killed."""

    def say(verb: str, number: int, more: int) -> None:
        os.write(pipe, f"{verb} {number} {more}\n".encode())

    journal = Journal.open(folder / "journal", bytes_max=ROOMY)
    table = ProgressTable.open(folder / "progress", 256, unix_time=time.time)
    for old in journal.unfinished():
        journal.finish(record(old))
        say("finish", number_of(old.exchange_id), 0)
    table.clear()  # only now: a kill during recovery must find the slots again
    live: dict[int, tuple[Slot, int]] = {}
    number = first
    while True:
        dice = rng.random()
        if dice < 0.2 and len(live) < 100:
            number += 1
            slot = table.claim(exchange_id(number))
            journal.begin(opened(number, slot=slot.index))
            live[number] = slot, 0
            say("begin", number, slot.index)
        elif dice < 0.75 and live:
            chosen = rng.choice(list(live))
            slot, events = live[chosen]
            live[chosen] = slot, events + 1
            slot.deliver(events + 1, 100 * (events + 1))
            say("deliver", chosen, events + 1)
        elif dice < 0.92 and live:
            chosen = rng.choice(list(live))
            slot, _ = live.pop(chosen)
            journal.finish(record(opened(chosen, slot=slot.index)))
            slot.release()
            say("finish", chosen, 0)
        elif dice < 0.98:
            for pending in journal.pending(3):
                journal.settled([pending.seq])
                say("settled", number_of(pending.record.opened.exchange_id), 0)
        elif dice < 0.982:
            journal.sync()


def check(folder: Path, known: Known) -> list[str]:
    """Everything that is not as it was acknowledged."""
    journal = Journal.open(folder / "journal", bytes_max=ROOMY)
    table = ProgressTable.open(folder / "progress", 256, unix_time=time.time)
    pending = [number_of(pending.record.opened.exchange_id) for pending in journal.pending(10**6)]
    unfinished = {number_of(of.exchange_id): of for of in journal.unfinished()}
    wrong = [str(damage) for damage in journal.damage]
    if len(pending) != len(set(pending)) or set(pending) & set(unfinished):
        wrong.append("something is there twice")
    gone = known.pending - set(pending)
    back = known.settled & set(pending)
    if len(gone) > 1 or back:
        wrong.append(f"pending: gone {sorted(gone)}, back {sorted(back)}")
    lost = [number for number in known.open if number not in unfinished and number not in pending]
    if lost:
        wrong.append(f"open: lost {lost}")
    if unknown := [n for n in unfinished if n not in known.open and n in known.pending | known.settled]:
        wrong.append(f"open again: {unknown}")
    for number, slot in known.open.items():
        progress = table.read(slot)
        if number in unfinished and (progress is None or progress.exchange_id != exchange_id(number)):
            wrong.append(f"the slot of {number} is not its own")
        elif number in unfinished and progress is not None and progress.events < known.delivered.get(number, 0):
            wrong.append(f"{number}: {progress.events} events recorded, {known.delivered[number]} delivered")
    # With the unacknowledged step, if there was one.
    known.open = {number: of.slot for number, of in unfinished.items()}
    known.pending = set(pending)
    table.close()
    crash(journal)
    return wrong


def main(folder: Path, rounds: int) -> None:
    log.SEGMENT_BYTES = SEGMENT_BYTES  # type: ignore[misc]
    folder.mkdir()
    rng = random.Random(20_26)
    known = Known()
    wrong: list[str] = []
    for round_ in range(rounds):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            work(folder, writing, random.Random(round_), first=round_ * 100_000)
        os.close(writing)
        deadline = time.monotonic() + rng.uniform(0.005, 0.06)
        said = b""
        killed = False
        while piece := os.read(reading, 65_536):
            said += piece
            if not killed and time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                killed = True
        os.waitpid(pid, 0)
        os.close(reading)
        for step in said.decode().splitlines(keepends=True):
            if step.endswith("\n"):
                known.take(step)
        wrong += [f"round {round_}: {what}" for what in check(folder, known)]
    print(json.dumps({"kills": rounds, "acknowledged": known.count, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

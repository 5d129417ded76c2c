"""A fixed loop in pure Python, timed in small pieces beside a run of the tests: a shared machine changes its speed.

It runs in a process of its own: a thread would compete with the tests for the interpreter, and its reading with them.
The script times pieces until a line or the end comes on standard input, then prints two figures: CPU-seconds of the
whole loop at the mean speed of the pieces, and CPU-seconds that the process used.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time

# The loop takes one second on a machine where the tests of `make test` took 350 s at commit 5902040. They took 535 s
# and 785 CPU-seconds where 2,650,000 rounds took 1.67 to 1.72 s beside them.
ROUNDS = 2_400_000
# A small part of the loop, twice a second: as fast as the machine is while the tests use it.
PIECES = 200
PIECE_EVERY_S = 0.5


class ReferenceLoop:
    """The process that times the loop."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-E", "-S", __file__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def end(self) -> tuple[float, float]:
        """CPU-seconds of the whole loop, and those that its process used."""
        printed, _ = self._process.communicate("\n")
        loop_s, used_s = printed.split()
        return float(loop_s), float(used_s)


def slowness() -> float:
    """How often this machine, as it is now, takes the time of one where the loop takes a second."""
    _piece()
    began_s = time.thread_time()
    _piece()
    return (time.thread_time() - began_s) * PIECES


def _piece() -> None:
    lengths: dict[str, int] = {}
    for number in range(ROUNDS // PIECES):
        name = f"{number % 1009}:{number & 7}"
        lengths[name] = lengths.get(name, 0) + len(name)
        if len(lengths) > 4096:
            lengths.clear()


def main() -> None:
    """Time pieces until standard input has a line or ends."""
    pieces, used_s, ended = 0, 0.0, False
    while not ended:
        _piece()  # a core that slept is slow at first
        began_s = time.process_time()
        _piece()
        used_s += time.process_time() - began_s
        pieces += 1
        ended = bool(select.select([sys.stdin], [], [], PIECE_EVERY_S)[0])
    print(used_s / pieces * PIECES, time.process_time())


if __name__ == "__main__":
    main()

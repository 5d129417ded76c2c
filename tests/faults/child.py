"""`python -m tests.faults.child ARMED SEEN POINT FAULT serve --config …`: the command, with one fault at one place.

The file ARMED holds one byte: the fault strikes once, the first time its line is reached while that byte is 1. In the
file SEEN every point that is reached while armed leaves its name (POINT is `-` then, and nothing strikes).
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.faults.points import PROXY_FILES, WORKER_FILES, Fault, Point, points

DELAY_S = 0.3
_PROXY = str(Path(__file__).parents[2] / "proxy") + os.sep

Trace = Callable[[FrameType, str, Any], Any]


def strike(fault: Fault) -> None:
    if fault is Fault.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault is Fault.FAIL:
        raise OSError(errno.EIO, "a fault of the test's own")
    time.sleep(DELAY_S)


def striking(armed: mmap.mmap, point: Point, fault: Fault) -> Trace:
    """Traces nothing but the one file, and there only frames that hold the line."""
    name, left = _PROXY + point.file, [fault]

    def lines(frame: FrameType, event: str, _argument: Any) -> Trace:
        if event == "line" and frame.f_lineno == point.line and left and armed[0] == 1:
            strike(left.pop())
        return lines

    def calls(frame: FrameType, _event: str, _argument: Any) -> Trace | None:
        return lines if left and frame.f_code.co_filename == name else None

    return calls


def recording(armed: mmap.mmap, seen: Path) -> Trace:
    """Writes down which points are reached."""
    wanted: dict[str, set[int]] = {}
    for point in points((*PROXY_FILES, *WORKER_FILES)):
        wanted.setdefault(_PROXY + point.file, set()).add(point.line)
    out = seen.open("a", buffering=1)

    def lines(frame: FrameType, event: str, _argument: Any) -> Trace:
        if event == "line" and armed[0] == 1:
            mine = wanted[frame.f_code.co_filename]
            if frame.f_lineno in mine:
                mine.discard(frame.f_lineno)
                out.write(f"{frame.f_code.co_filename.removeprefix(_PROXY)}:{frame.f_lineno}\n")
        return lines

    def calls(frame: FrameType, _event: str, _argument: Any) -> Trace | None:
        return lines if wanted.get(frame.f_code.co_filename) else None

    return calls


def main() -> int:
    armed_file, seen, point, fault, *arguments = sys.argv[1:]
    with Path(armed_file).open("r+b") as file:
        armed = mmap.mmap(file.fileno(), 1)
    trace = recording(armed, Path(seen)) if point == "-" else striking(armed, Point.of(point), Fault(fault))
    threading.settrace(trace)
    sys.settrace(trace)
    from proxy.cli import main as command

    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())

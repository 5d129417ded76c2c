"""Machines with networks of their own, and a network between them that drops and delays packets.

Each machine is a thread in a network namespace of its own, without a name: what the thread starts, and every socket
that it opens, is on that machine's network, and the kernel removes all of it with the last of them. A TUN device joins
each namespace to the switch, a process that passes IP packets on by their address. So what is cut, or loses packets, is
between two real TCP stacks, whose retransmissions and timeouts are the kernel's. It needs root and /dev/net/tun, and of
the kernel neither netem nor netfilter.

Invariants: without a condition every packet is passed on, in order, at once. The host's network is not touched. The
switch ends with the tests that started it, whatever ends them.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from select import select
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).parents[2]
PREFIX = "10.213.7."
# Of linux/sched.h and linux/if_tun.h: a new network namespace; a device of bare IP packets.
_CLONE_NEWNET = 0x4000_0000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000
_TUN = Path("/dev/net/tun")
_PACKET_BYTES_MAX = 2048
_TCP = 6
# One machine's burst does not keep the others waiting.
_BURST_PACKETS = 64

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Condition:
    """What becomes of the packets of one way."""

    loss: float = 0.0
    """part of them that is dropped; 1: all"""
    delay_s: float = 0.0


CUT, FINE = Condition(loss=1.0), Condition()


class Machine:
    """A network namespace, and a thread in it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.wire: int = self.do(self._join)
        """the file descriptor of its packets"""

    def do(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Call it on this machine, and wait for its result."""
        return self._thread.submit(work, *arguments).result()

    @contextmanager
    def within(self, manager: AbstractContextManager[_T]) -> Iterator[_T]:
        """The context manager, entered and left on this machine."""
        try:
            yield self.do(manager.__enter__)
        finally:
            self.do(manager.__exit__, None, None, None)

    def close(self) -> None:
        """Take it off the network."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        os.close(self.wire)

    def _join(self) -> int:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        wire = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(wire, _TUNSETIFF, struct.pack("16sH22x", b"wire", _IFF_TUN | _IFF_NO_PI))
        for words in (f"addr add {self.address}/24 dev wire", "link set wire up", "link set lo up"):
            subprocess.run(["ip", *words.split()], check=True)
        return wire


class Network:
    """All machines, and the switch between them: `with Network("one", "two") as network: …`. It skips the test where
    this machine cannot."""

    def __init__(self, *names: str) -> None:
        _skip_where_impossible()
        numbers = count(1)
        self.machines = {name: Machine(name, f"{PREFIX}{next(numbers)}") for name in names}
        self._conditions: dict[tuple[str, str, int], Condition] = {}
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Network:
        wires = {machine.address: machine.wire for machine in self.machines.values()}
        self._switch = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(wires)],
            cwd=ROOT, pass_fds=list(wires.values()), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._switch is not None
        with self._switch:  # its input ends, and so it does
            pass
        for machine in self.machines.values():
            machine.close()

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def set(self, condition: Condition, *, source: str, target: str, port: int) -> None:
        """From now on, for the packets of connections to `port` that `source` sends to `target`."""
        way = self[source].address, self[target].address, port
        if condition == FINE:
            self._conditions.pop(way, None)
        else:
            self._conditions[way] = condition
        self._tell()

    def _tell(self) -> None:
        """Returns when the switch has it."""
        assert self._switch is not None
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        conditions = [[*way, one.loss, one.delay_s] for way, one in self._conditions.items()]
        self._switch.stdin.write(json.dumps(conditions) + "\n")
        self._switch.stdin.flush()
        assert self._switch.stdout.readline() == "done\n", "the switch has ended"


def _skip_where_impossible() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    if not _TUN.exists():
        pytest.skip(f"there is no {_TUN}: the kernel has no TUN devices, or this container may not use them")
    if subprocess.run(["ip", "-V"], capture_output=True, check=False).returncode:
        pytest.skip("`ip` (iproute2) is not on this machine")


# -- the switch, a process of its own ----------------------------------------------------------------------------------


class Switch:
    def __init__(self, wires: dict[str, int]) -> None:
        """`wires`: of each machine's address."""
        self._wires = {socket.inet_aton(address): wire for address, wire in wires.items()}
        self._conditions: dict[tuple[bytes, bytes, int], Condition] = {}
        self._late: list[tuple[float, int, bytes]] = []
        """when, its number, the packet; a heap"""
        self._numbers = count()
        self._rng = Random(0)

    def run(self) -> None:
        """Until standard input ends. Each of its lines is all conditions that there are."""
        while True:
            wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            ready, _, _ = select([0, *self._wires.values()], (), (), wait_s)
            if 0 in ready:
                if not (line := sys.stdin.readline()):
                    return
                self._conditions = dict(_read(json.loads(line)))
                print("done", flush=True)
            for wire in ready:
                if wire:
                    self._take(wire)
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                self._put(heapq.heappop(self._late)[2])

    def _take(self, wire: int) -> None:
        with suppress(BlockingIOError):
            for _ in range(_BURST_PACKETS):
                packet = os.read(wire, _PACKET_BYTES_MAX)
                if packet[0] >> 4 == 4:
                    self._pass(packet)

    def _pass(self, packet: bytes) -> None:
        condition = self._condition(packet)
        if condition is None:
            self._put(packet)
        elif self._rng.random() >= condition.loss:
            heapq.heappush(self._late, (time.monotonic() + condition.delay_s, next(self._numbers), packet))

    def _condition(self, packet: bytes) -> Condition | None:
        if not self._conditions or packet[9] != _TCP:
            return None
        source, target = packet[12:16], packet[16:20]
        ports = struct.unpack_from("!HH", packet, (packet[0] & 15) * 4)
        found = (self._conditions.get((source, target, port)) for port in ports)
        return next((condition for condition in found if condition is not None), None)

    def _put(self, packet: bytes) -> None:
        if (wire := self._wires.get(packet[16:20])) is not None:
            with suppress(OSError):  # its queue is full, or it is gone: a packet is lost
                os.write(wire, packet)


def _read(
    conditions: Iterable[tuple[str, str, int, float, float]],
) -> Iterator[tuple[tuple[bytes, bytes, int], Condition]]:
    for source, target, port, loss, delay_s in conditions:
        yield (socket.inet_aton(source), socket.inet_aton(target), port), Condition(loss, delay_s)


if __name__ == "__main__":
    Switch(json.loads(sys.argv[1])).run()

"""What can be wrong with the network between a machine and the servers, and all that is tried of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from tests.distributed.site import PROXIES, SERVICES, WORKERS, Site
from tests.support.network import CUT, FINE, Condition

SERVERS = ("valkey", "postgres")
REQUESTS, ANSWERS = "requests", "answers"
# As `tc netem delay 200ms loss 2%` on the line of the machine that is struck.
SLOW = Condition(loss=0.02, delay_s=0.2)
# Well below a lease, and above it.
SHORT_S, LONG_S = 4.0, 9.0


@dataclass(frozen=True, slots=True)
class Cut:
    """What is wrong between a machine and some of the servers."""

    machine: str
    servers: Sequence[str] = SERVERS
    ways: Sequence[str] = (REQUESTS, ANSWERS)
    condition: Condition = CUT
    lasts_s: float = SHORT_S

    def __str__(self) -> str:
        what = "is cut off from" if self.cuts else "has a slow line to"
        return f"{self.machine} {what} {' and '.join(self.servers)} ({', '.join(self.ways)}, {self.lasts_s:.0f} s)"

    def begin(self, site: Site) -> None:
        self._set(site, self.condition)

    def end(self, site: Site) -> None:
        """The network is as it was; what was lost, the kernel sends again."""
        self._set(site, FINE)

    def _set(self, site: Site, condition: Condition) -> None:
        ports = {"valkey": site.valkey.port, "postgres": site.postgres.port}
        both = {REQUESTS: (self.machine, SERVICES), ANSWERS: (SERVICES, self.machine)}
        for server, way in product(self.servers, self.ways):
            source, target = both[way]
            site.network.set(condition, source=source, target=target, port=ports[server])

    @property
    def cuts(self) -> bool:
        return self.condition is CUT

    @property
    def blinds(self) -> bool:
        """A proxy cannot ask Valkey."""
        return self.cuts and self.machine in PROXIES and "valkey" in self.servers


def all_cuts(rng: Random) -> list[Cut]:
    """Each machine, each server and both, each way and both; and each machine with a slow line."""
    machines = (*PROXIES, *WORKERS)
    servers = (SERVERS, *((one,) for one in SERVERS))
    ways = ((REQUESTS, ANSWERS), (REQUESTS,), (ANSWERS,))
    cuts = [
        Cut(machine, some, way, lasts_s=rng.choice((SHORT_S, LONG_S)))
        for machine, some, way in product(machines, servers, ways)
    ]
    cuts += [Cut(machine, condition=SLOW, lasts_s=LONG_S) for machine in machines]
    rng.shuffle(cuts)
    return cuts

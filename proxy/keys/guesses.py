"""Rate limit of failed sign-ins, per client address.

Invariants: Requests with a known key are never limited. Memory is bounded for any number of addresses.
"""

from __future__ import annotations

import ipaddress
from array import array
from collections import Counter

# More than a person who mixes up keys needs. 256 bits cannot be guessed anyway: this only limits the load on logs,
# metrics and the database.
GUESSES_MAX = 20
WINDOW_S = 60.0

# About 300 bytes each. An attacker with more addresses evades the limit, but still cannot guess a key.
ADDRESSES_MAX = 10_000

# The smallest IPv6 prefix that a network operator assigns to one customer.
_IPV6_PREFIX = 64

# The longest text of an IPv6 address; an invalid address is cut to it.
_TEXT_CHARS = 45


class Guesses:
    """Counters of failed sign-ins. Times: seconds of a monotonic clock."""

    def __init__(self) -> None:
        # Address group → times of its latest failures, ascending; groups in the order of their latest failure.
        self._failed: dict[str, array[float]] = {}
        self._undecided: Counter[str] = Counter()
        """address group → number of counted keys that are being looked up"""

    def retry_after_s(self, address: str | None, now: float) -> float:
        """Seconds for which unknown keys from this address are refused; 0: unknown keys are looked up. `address` None:
        no limit."""
        failed = None if address is None else self._failed.get(group_of(address))
        if failed is None or len(failed) < GUESSES_MAX:
            return 0.0
        return max(0.0, failed[0] + WINDOW_S - now)

    def uncertain(self, address: str | None) -> bool:
        """True if a key that was counted is still being looked up."""
        return address is not None and group_of(address) in self._undecided

    def count(self, address: str | None, now: float, *, decided: bool = True) -> None:
        """Count an unknown key. `decided` False: the key is being looked up, and `decide` follows."""
        if address is None:
            return
        group = group_of(address)
        failed = self._failed.pop(group, None) or array("d")
        failed.append(now)
        self._failed[group] = failed[-GUESSES_MAX:]
        if not decided:
            self._undecided[group] += 1
        if len(self._failed) > ADDRESSES_MAX:
            del self._failed[next(iter(self._failed))]

    def decide(self, address: str | None, *, failed: bool) -> None:
        """End the look-up of a counted key; if the look-up has not `failed`, the key is no longer counted."""
        if address is None:
            return
        group = group_of(address)
        self._undecided[group] -= 1
        if not self._undecided[group]:
            del self._undecided[group]
        if not failed and (times := self._failed.get(group)):
            times.pop()


def group_of(address: str) -> str:
    """The unit of counting: an IPv4 address, the /64 of an IPv6 address, or an invalid address as text."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_TEXT_CHARS]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> (128 - _IPV6_PREFIX):x}::/{_IPV6_PREFIX}"

"""How often an address has presented what is no key. Law: it bounds guesses, and nobody who has a key; its memory is
bounded whoever comes, and from however many addresses.
"""

from __future__ import annotations

import ipaddress
from array import array

# A person who mixes up keys is done with fewer; 256 bits cannot be guessed at any rate, so this only keeps logs,
# metrics and the database quiet.
GUESSES_MAX = 20
WINDOW_S = 60.0

# About 300 bytes each. Whoever has more addresses than this may go on guessing, to no avail.
ADDRESSES_MAX = 10_000

# What one customer of a provider has of IPv6 at the least.
_IPV6_PREFIX = 64

# Of an address that is none: as much as an IPv6 address has in text.
_TEXT_CHARS = 45


class Guesses:
    """Times: seconds of a clock that never goes back."""

    def __init__(self) -> None:
        # Group of addresses → when its last guesses failed, in their order; groups in the order of their last ones.
        self._failed: dict[str, array[float]] = {}

    def retry_after_s(self, address: str | None, now: float) -> float:
        """How long from now this address may present only what is a key; 0: it may guess. None is never limited."""
        failed = None if address is None else self._failed.get(group_of(address))
        if failed is None or len(failed) < GUESSES_MAX:
            return 0.0
        return max(0.0, failed[0] + WINDOW_S - now)

    def count(self, address: str | None, now: float) -> None:
        """It presents what may be no key."""
        if address is None:
            return
        group = group_of(address)
        failed = self._failed.pop(group, None) or array("d")
        failed.append(now)
        self._failed[group] = failed[-GUESSES_MAX:]
        if len(self._failed) > ADDRESSES_MAX:
            del self._failed[next(iter(self._failed))]

    def forgive(self, address: str | None) -> None:
        """The last one that was counted was a key after all."""
        if address is not None and (failed := self._failed.get(group_of(address))):
            failed.pop()


def group_of(address: str) -> str:
    """What is counted together: an IPv4 address, or the /64 of an IPv6 address; anything else as it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_TEXT_CHARS]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{int(found) >> (128 - _IPV6_PREFIX):x}::/{_IPV6_PREFIX}"

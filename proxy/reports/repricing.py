"""What other prices come to, by customer. Invariant: the sums of the customers add up to the total, to the
nano-dollar."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Engine

from proxy.ledger.accounts.owners import owners_of
from proxy.ledger.settling.corrections import SimulatedSum, Simulation


@dataclass(slots=True)
class CustomerSum:
    """The sums of one organization."""

    organization_id: str | None
    """None: the organization of a key is unknown; `name` is that of the key"""
    name: str
    sums: SimulatedSum = field(default_factory=SimulatedSum)


def by_customer(engine: Engine, simulation: Simulation) -> list[CustomerSum]:
    """The customers with exchanges in the simulation, those with the largest difference first. Raises
    LedgerUnavailable."""
    owners = owners_of(engine, {key_id for key_id, _, _ in simulation.by_key})
    found: dict[str, CustomerSum] = {}
    for (key_id, alias, _), sums in simulation.by_key.items():
        owner = owners.get(key_id)
        if owner is None or owner.organization_id is None:
            customer = CustomerSum(None, alias)
        else:
            customer = CustomerSum(owner.organization_id, owner.organization or owner.organization_id)
        found.setdefault(customer.organization_id or key_id, customer).sums.add_all(sums)
    return sorted(found.values(), key=lambda one: (-abs(_difference(one.sums)), one.name))


def _difference(sums: SimulatedSum) -> int:
    return sums.simulated_charge_nusd - sums.charge_nusd

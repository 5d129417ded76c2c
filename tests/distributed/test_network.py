"""Proxies and workers are cut off from Valkey, from Postgres and from both, both ways and one way, and have a slow line
that loses packets: streams go on, and each exchange is settled once, with its true numbers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from proxy.budgets.open_budgets import SWEPT_S
from proxy.demo.script import Shape
from tests.crash.chaos import nano, settle
from tests.crash.stage import Stage, quick_key
from tests.distributed.cuts import ANSWERS, LONG_S, REQUESTS, SHORT_S, SLOW, Cut, all_cuts
from tests.distributed.site import AGAIN_S, AMPLE, FEW, FREE, HEALING_S, LEASE_S, PROXIES, Site, folded, site
from tests.support import sse
from tests.support.examples import SEED
from tests.support.network import CUT, FINE, Condition, Network

# No process dies: what was taken for dead and was not is adjusted to the truth.
ENDS = ("served", "client_left")


A_FEW = (
    Cut("proxy-1", lasts_s=LONG_S),
    Cut("proxy-2", ("valkey",), (ANSWERS,)),
    Cut("worker-1", ("postgres",), (ANSWERS,), lasts_s=LONG_S),
    Cut("worker-2", ("valkey",), (REQUESTS,)),
    Cut("proxy-1", condition=SLOW),
)


async def strike(site: Site, cut: Cut, rng: Random) -> list[str]:
    """Under load; what is wrong after it is healed, and all have come to rest."""
    async with site.traffic(rng) as seen:
        await seen.until_served()
        began = time.monotonic()
        cut.begin(site)
        await asyncio.sleep(cut.lasts_s)
        cut.end(site)
        healed = time.monotonic()
        await site.ready()
        await seen.until_served((FREE, AMPLE, FEW))
    blind = {cut.machine: (began, healed)} if cut.blinds else {}
    wrong = [*seen.unpromised(blind), *site.wrong(seen, ends=ENDS)]
    return [f"{cut}: {what}" for what in wrong]


async def strike_all(site: Site, cuts: Sequence[Cut], rng: Random) -> tuple[list[str], str]:
    """One after the other; what is wrong, and the figures."""
    began = time.monotonic()
    wrong = [what for cut in cuts for what in await strike(site, cut, rng)]
    wrong += site.proxies["proxy-1"].unreconciled()
    figures = (
        f"network: {len(cuts)} cuts and slow lines, {len(wrong)} violations ({site.exchanges} exchanges,"
        f" {site.adjusted} of them swept though their machine lived, {site.refused} refused because nobody could say"
        f" what is left, {site.spent} budgets spent; {time.monotonic() - began:.0f} s)"
    )
    return wrong, figures


@pytest.fixture
def deployed(tmp_path: Path, postgres_cluster: Path) -> Iterator[Site]:
    """Two proxies and two workers, serving."""
    with site(tmp_path, postgres_cluster) as made:
        yield made


@pytest.mark.external
@pytest.mark.privileged
def test_the_network_does_as_it_is_told() -> None:
    with Network("here", "there") as network:
        here, there = network["here"], network["there"]
        server = there.do(socket.create_server, (there.address, 8080))
        near = here.do(socket.create_connection, (there.address, 8080), 5.0)
        far, _ = server.accept()
        with server, near, far:
            for sock in (near, far):
                sock.settimeout(1.0)

            def arrives(source: socket.socket, target: socket.socket) -> bool:
                source.sendall(b"x")
                try:
                    return target.recv(1) == b"x"
                except TimeoutError:
                    return False

            assert arrives(near, far)
            assert arrives(far, near)
            network.set(CUT, source="there", target="here", port=8080)
            assert arrives(near, far)
            assert not arrives(far, near)
            network.set(CUT, source="here", target="there", port=8080)
            assert not arrives(near, far)
            for source, target in (("here", "there"), ("there", "here")):
                network.set(FINE, source=source, target=target, port=8080)
            for sock in (near, far):  # the kernel sends it again
                sock.settimeout(10.0)
                assert sock.recv(1) == b"x"
            network.set(Condition(delay_s=0.2), source="here", target="there", port=8080)
            began = time.monotonic()
            assert arrives(near, far)
            assert time.monotonic() - began >= 0.2
        assert "wire" not in [name for _, name in socket.if_nameindex()], "nothing of it is on the host's network"


@pytest.mark.external
@pytest.mark.privileged
@pytest.mark.waits
@pytest.mark.timeout(300)
def test_some_are_cut_off(deployed: Site) -> None:
    wrong, figures = deployed.run(strike_all(deployed, A_FEW, Random(SEED)))
    assert not wrong, f"seed {SEED}: {wrong}"
    assert deployed.adjusted, figures
    assert deployed.refused, figures


class Spent(NamedTuple):
    """In nUSD: of a budget, and what was held of it by a proxy that was cut off."""

    spent: int
    budget: int
    held: int


async def both_spend(site: Site, *, flush: bool, lasts_s: float) -> Spent:
    """A proxy that holds half of a budget for its streams is cut off; the other one is asked for more than there is,
    meanwhile and afterwards."""
    # An answer costs a little less than a tenth of the budget.
    tokens, half, budget = 300, 5, 1_330_000
    near, far = (site.proxies[name] for name in PROXIES)
    key = quick_key(near, Limits(budget_nusd=Nusd(budget), budget_window="none"), alias="half")
    site.provider.reset()
    slow = site.provider.script("slow", Shape("openai", tokens=tokens, pace_ms=50))
    quick = site.provider.script("quick", Shape("openai", tokens=tokens))
    cut = Cut(PROXIES[1], ("valkey",))
    async with Stage(far, key) as holding, Stage(near, key) as asking:
        streams = [await holding.begin(slow, max_tokens=tokens) for _ in range(half)]
        until = time.monotonic() + lasts_s
        cut.begin(site)
        if flush:
            site.valkey.ask("FLUSHALL")
        while time.monotonic() < until:
            await asking.whole(quick, stream=False, max_tokens=tokens)
            await asyncio.sleep(AGAIN_S)
        cut.end(site)
        for client, response in streams:
            assert sse.done((await client.read_body(response, timeout_s=HEALING_S)).body)
        for proxy in (near, far):
            await asyncio.to_thread(settle, proxy, HEALING_S)
        for _ in range(3 * half):
            await asking.whole(quick, stream=False, max_tokens=tokens)
    await asyncio.to_thread(settle, near, HEALING_S)
    entries = list(folded(near.read_ledger()))
    return Spent(
        sum(nano(entry["charge_usd"]) for entry in entries),
        budget,
        sum(nano(entry["details"]["held_usd"]) for entry in entries if entry["upstream_model"] == slow),
    )


@pytest.mark.slow
def test_what_a_proxy_holds_that_is_cut_off_is_granted_to_no_other(deployed: Site) -> None:
    """Valkey forgets it, and the proxy is back in time."""
    spent, budget, held = deployed.run(both_spend(deployed, flush=True, lasts_s=SHORT_S))
    assert held
    assert 0.9 * budget < spent <= budget


@pytest.mark.slow
@pytest.mark.parametrize(("flush", "lasts_s"), [(True, LEASE_S + SWEPT_S + SHORT_S), (False, LONG_S)])
def test_who_is_cut_off_for_longer_than_it_is_waited_for_overspends_what_it_held(
    deployed: Site, flush: bool, lasts_s: float
) -> None:
    """It was taken for dead."""
    spent, budget, held = deployed.run(both_spend(deployed, flush=flush, lasts_s=lasts_s))
    assert budget < spent <= budget + held


@pytest.mark.slow
def test_each_is_cut_off_from_each(deployed: Site, capsys: pytest.CaptureFixture[str]) -> None:
    rng = Random(SEED)
    with capsys.disabled():
        print(f"\nseed {SEED}")
        wrong, figures = deployed.run(strike_all(deployed, all_cuts(rng), rng))
        print(figures, *wrong[:50], sep="\n")
    assert not wrong

"""The whole table of failover: each failure of the first provider × stream or not × before and after the first event ×
one key, one credential, two credentials; who is asked, what the client gets, and the bill of each.

The rules stand here a second time, as docs/how-to/provider-failover.md has them, so that table and code are compared.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxy.demo.script import Fin, Script, Send, Shape
from proxy.demo.shapes import DONE
from proxy.demo.shapes import sse as event
from tests.crash.stage import Stage, quick_key
from tests.gateway.exchange.failures import B_COST, ERROR, FAILED_ANSWERS, FAILED_STREAMS, money
from tests.support.provider import ScriptedProvider, error_script
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

pytestmark = [pytest.mark.thorough, pytest.mark.process]

ACCESS: Mapping[str, Mapping[str, Any]] = {
    "key": {"api_key": "${TEST_PROVIDER_KEY}"},
    "one": {"credentials": [{"name": "first", "api_key": "${TEST_PROVIDER_KEY}"}]},
    "two": {"credentials": [{"name": f"c{n}", "api_key": "${TEST_PROVIDER_KEY}"} for n in (1, 2)]},
}
ABOUT_CREDENTIALS = (401, 402, 403, 429)
ELSEWHERE = (*ABOUT_CREDENTIALS, 404, 408, 409, 499, 500, 503, 529)
MAY_BE_BILLED = (408, 499, 500, 503, 529)
OF_THE_CLIENT = (400, 413, 422)
FIRST = Send(event({"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "one two three"}}]}))
AFTER: Mapping[str, Script] = {
    "then-error": Script(steps=(FIRST, Send(event(ERROR)), Send(DONE))),
    "then-end": Script(steps=(FIRST,)),
    "then-cut": Script(steps=(FIRST, Fin())),
}
AT_B = Shape("openai", tokens=7)


class Case(NamedTuple):
    """A failure of the first provider, and what has to come of it."""

    script: Script
    stream: bool
    asked: tuple[int, int]
    """how often each provider is asked"""
    status: int
    """that the client gets"""
    attempt: tuple[int, str | None] | None
    """status and cost in dollars of the first one's attempt entry; None: there is no other attempt"""
    outcome: str


def cases(access: str) -> dict[str, Case]:
    found = {}
    for stream in (True, False):
        shape = "stream" if stream else "plain"
        for status in ELSEWHERE:
            asked_a = 2 if access == "two" and status in ABOUT_CREDENTIALS else 1
            cost = None if status in MAY_BE_BILLED else "0"
            script = error_script(status, "no")
            found[f"{status}-{shape}"] = Case(script, stream, (asked_a, 1), 200, (status, cost), "served")
        for status in OF_THE_CLIENT:
            script = error_script(status, "no")
            found[f"{status}-{shape}"] = Case(script, stream, (1, 0), status, None, "refused_upstream")
        for name, script in (FAILED_STREAMS if stream else FAILED_ANSWERS).items():
            found[name] = Case(script, stream, (1, 1), 200, (200, None), "served")
    for name, script in AFTER.items():
        found[name] = Case(script, True, (1, 0), 200, None, "upstream_failed")
    return found


@pytest.mark.parametrize("access", ACCESS)
async def test_each_failure_is_answered_and_billed_as_the_table_says(
    access: str, tmp_path: Path, provider: ScriptedProvider
) -> None:
    table, second = cases(access), ScriptedProvider()
    providers, models = {}, {}
    for name, case in table.items():
        provider.script(name, case.script)
        second.script(name, AT_B)
        providers[f"a-{name}"] = {"base_url": provider.base_url, **ACCESS[access]}
        providers[f"b-{name}"] = provider_section(second.base_url)
        targets = [{"provider": f"a-{name}", "cost": COST}, {"provider": f"b-{name}", "cost": B_COST}]
        models[f"{name}/*"] = {"providers": targets, "price": PRICE}
    tokenweir = Tokenweir(tmp_path, providers=providers, models=models)
    key = quick_key(tokenweir)
    try:
        tokenweir.start()

        async def ask(name: str) -> tuple[str, int]:
            async with Stage(tokenweir, key) as stage:
                response = await stage.whole(f"{name}/{name}", stream=table[name].stream)
            exchange_id = response.header("x-tokenweir-exchange")
            assert exchange_id is not None, name
            return exchange_id, response.status

        answers = dict(zip(table, await asyncio.gather(*map(ask, table)), strict=True))
        rows = sum(1 if case.attempt is None else 2 for case in table.values())
        entries = await asyncio.to_thread(tokenweir.until, lambda found: len(found) >= rows)
        counted = Counter(one["exchange_id"] for one in entries)
        surplus = [n for n, c in table.items() if counted[answers[n][0]] != 1 + (c.attempt is not None)]
        assert (surplus, len(entries)) == ([], rows), "nothing is billed twice"
        asked = [dict.fromkeys(table, 0), dict.fromkeys(table, 0)]
        for number, one in enumerate((provider, second)):
            for exchange in one.log():
                asked[number][exchange["body"]["model"]] += 1
        for name, case in table.items():
            exchange_id, status = answers[name]
            assert status == case.status, name
            assert (asked[0][name], asked[1][name]) == case.asked, name
            (last,) = (one for one in entries if one["exchange_id"] == exchange_id and one["kind"] == "usage")
            attempts = [one for one in entries if one["exchange_id"] == exchange_id and one["kind"] == "attempt"]
            served_by = "b" if case.asked[1] else "a"
            assert (last["outcome"], last["provider"]) == (case.outcome, f"{served_by}-{name}"), name
            if case.outcome == "refused_upstream":
                assert (last["charge_usd"], last["cost_usd"]) == ("0", "0"), name
            else:
                of_both = {"input": 0} if case.outcome == "upstream_failed" else {}  # then its output alone
                cost = B_COST if served_by == "b" else COST
                assert Decimal(last["charge_usd"]) == money(last, {**PRICE, **of_both}) > 0, name
                assert Decimal(last["cost_usd"]) == money(last, {**cost, **of_both}), name
            found = [(one["details"]["upstream_status"], one["cost_usd"]) for one in attempts]
            assert found == ([] if case.attempt is None else [case.attempt]), name
            assert all(one["charge_usd"] == "0" for one in attempts), name
        assert tokenweir.unreconciled() == []
        assert tokenweir.stop() == 0
    finally:
        tokenweir.close()
        second.close()

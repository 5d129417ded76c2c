"""Official SDKs in Go, Java, JavaScript and Python before the proxy; the ledger holds what each of them reported.

Invariant: the SDK's own reading is the judge, the provider's script the truth.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.real.sdks.answers import ANSWERS, COUNTED, LONG
from tests.real.sdks.programs import PROGRAMS, REFUSED, Program, Report, Reports
from tests.real.sdks.stand import Stand

# Building what has never been built may take minutes; it is done within the first test of a program.
pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

READ_TOKENS = 12
STATUS = {"unknown_key": 401, "spent": 402, "limited": 429}
SAYS = {
    "unknown_key": "Incorrect API key",
    "spent": "This request does not fit the budget of this key",
    "limited": "Rate limit of 1 request per minute",
}
_OPENAI = {"unknown_key": "invalid_api_key", "spent": "insufficient_quota", "limited": "rate_limit_exceeded"}
KINDS = {
    "openai": _OPENAI,
    "mistral": _OPENAI,
    "anthropic": {
        "unknown_key": "authentication_error", "spent": "billing_error", "limited": "rate_limit_error",
    },
}  # fmt: skip

USAGE = ("prompt_tokens", "cached_tokens", "completion_tokens")


def cases(names: str) -> list[Any]:
    """A program, and each of these scenarios of it."""
    return [
        pytest.param(program, scenario, id=f"{program.id}-{scenario}")
        for program in PROGRAMS
        for scenario in (REFUSED if names == "refused" else program.answered)
    ]


def having(scenario: str) -> list[Any]:
    return [pytest.param(program, id=program.id) for program in PROGRAMS if scenario in program.more]


def truth(stand: Stand, program: Program, scenario: str) -> tuple[int, int, int]:
    answer = ANSWERS[program.language][scenario]
    (seen,) = stand.seen(program.model(scenario))
    assert not [key for key in stand.keys.values() if key in json.dumps(seen)]
    return answer.usage or (seen["prompt_tokens"], seen["cached_tokens"], seen["completion_tokens"])


def usage(told: dict[str, Any]) -> tuple[int, int, int]:
    prompt, cached, completion = (told[name] or 0 for name in USAGE)
    return prompt, cached, completion


@pytest.mark.parametrize(("program", "scenario"), cases("answered"))
def test_what_an_sdk_reported_is_in_the_ledger(stand: Stand, reports: Reports, program: Program, scenario: str) -> None:
    told, answer = reports(program)[scenario], ANSWERS[program.language][scenario]
    assert "error" not in told, told["error"]
    assert told.get("text", "") == answer.text
    assert json.loads(told.get("arguments") or "null") == answer.arguments
    assert told.get("finish") == program.finishes.get(scenario, answer.finish)
    assert told.get("vector") == answer.vector
    entry = stand.entry(program.model(scenario))
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert usage(entry) == truth(stand, program, scenario)
    shown = told.get("usage")
    assert (usage(shown) if shown else None) == (usage(entry) if answer.usage_shown else None)


@pytest.mark.parametrize("program", [pytest.param(one, id=one.id) for one in PROGRAMS])
def test_who_leaves_in_the_middle_pays_for_what_was_made(stand: Stand, reports: Reports, program: Program) -> None:
    told = reports(program)["leave"]
    assert "error" not in told, told["error"]
    entry = stand.entry(program.model("leave"))
    (seen,) = stand.seen(program.model("leave"))
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert seen["ended"] == "client_left"
    read, generated = len(told["text"].split()), seen["completion_tokens"]
    assert READ_TOKENS // 2 <= read <= generated < LONG
    assert generated / 2 < entry["completion_tokens"] < generated * 2


@pytest.mark.parametrize("program", [pytest.param(one, id=one.id) for one in PROGRAMS])
def test_a_stream_that_breaks_off_is_an_error(stand: Stand, reports: Reports, program: Program) -> None:
    told = reports(program)["broken"]
    assert told["error"], told
    entry = stand.entry(program.model("broken"))
    assert (entry["outcome"], entry["usage_source"]) == ("upstream_failed", "estimated")


@pytest.mark.parametrize(("program", "scenario"), cases("refused"))
def test_a_refusal_is_the_sdks_own_error(stand: Stand, reports: Reports, program: Program, scenario: str) -> None:
    error: Report = reports(program)[scenario]["error"]
    assert (error["type"], error["status"]) == (program.raises[REFUSED.index(scenario)], STATUS[scenario])
    assert SAYS[scenario] in error["message"]
    if "kind" in error:
        assert error["kind"] == KINDS[program.language][scenario]
    model = program.model(scenario)
    served = 1 if scenario == "limited" else 0  # of the two that it asked
    assert len([entry for entry in stand.tokenweir.read_ledger() if entry["model"] == model]) == served
    assert len(stand.provider.log(model.partition("/")[2])) == served


@pytest.mark.parametrize("program", having("models"))
def test_the_list_of_models_is_read(reports: Reports, program: Program) -> None:
    told = reports(program)["models"]
    assert f"{program.language}-model" in told["models"], told


@pytest.mark.parametrize("program", having("count_tokens"))
def test_counting_tokens_is_answered_and_free(stand: Stand, reports: Reports, program: Program) -> None:
    told = reports(program)["count_tokens"]
    assert told["counted"] == COUNTED, told
    entry = stand.entry(program.model("count_tokens"))
    assert (entry["outcome"], float(entry["charge_usd"])) == ("served", 0)

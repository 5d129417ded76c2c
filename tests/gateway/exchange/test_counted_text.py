"""What a provider did not report is counted in the text before it is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from proxy.demo.script import AnyStep, Send, Stall
from proxy.demo.shapes import DONE, sse
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.gateway.streams import told
from tests.support.provider import ScriptedProvider, json_instead, sends

# Words of several tokens, several in an event: the counters see neither.
SAID = "Überlaufwehre regulieren Wasserstände. " * 4
ASKED = "Welche Überlaufwehre regulieren Wasserstände? " * 20
WEIRS = "weirs hold the water back; " * 60
CHARS = ("chars_latin", "chars_wide", "chars_other")
# By the reference, o200k.
SAID_TOKENS, ASKED_TOKENS, WEIRS_TOKENS = 36, 201, 421


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider) -> Iterator[Deployment]:
    """A deployment that has the reference's vocabulary."""
    made = Deployment(tmp_path_factory.mktemp("counting"), provider_process, estimates={})
    yield made
    made.close()


@pytest.fixture
def deployment(counting: Deployment, provider: ScriptedProvider) -> Deployment:
    """The deployment that counts, its provider without plans."""
    assert provider is counting.provider
    return counting


def say(text: str) -> bytes:
    return sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


async def cut(deployment: Deployment, model: str, body: bytes, **more: Any) -> dict[str, Any]:
    """The entry of a client that left after `body`."""
    client = await deployment.begin(model, **more)
    await client.read_body(await client.read_head(SOON_S), until=body, timeout_s=SOON_S)
    client.close()
    entry = await deployment.entry(model)
    assert nusd(entry) == charge(entry) > 0
    return entry


def stalled(events: Sequence[bytes]) -> list[AnyStep]:
    return [*sends(events), Stall()]


async def test_a_cut_stream_and_its_prompt_are_counted_by_the_reference(deployment: Deployment) -> None:
    model = deployment.plan("cancel", stalled([say(SAID)] * 12), name="fresh")
    entry = await cut(deployment, model, say(SAID) * 12, messages=[{"role": "user", "content": ASKED}])
    assert (entry["usage_source"], entry["estimator"]) == ("estimated", "reference-3")
    assert entry["details"]["evidence"]["tokens_counted"] == pytest.approx(12 * SAID_TOKENS, abs=12)
    assert entry["completion_tokens"] == pytest.approx(12 * SAID_TOKENS, rel=0.15)
    assert entry["prompt_tokens"] == pytest.approx(ASKED_TOKENS + 7, rel=0.15)
    assert 0.05 < entry["details"]["expected_error"] < 0.6


async def test_the_reference_is_the_own_vocabulary_of_openais_models(deployment: Deployment) -> None:
    model = deployment.plan("cancel", stalled([say(SAID)] * 9), name="gpt-4o")
    entry = await cut(deployment, model, say(SAID) * 9)
    assert entry["estimator"] == "tokenizer-1"
    assert entry["completion_tokens"] == pytest.approx(9 * SAID_TOKENS, abs=9)


async def test_a_stream_that_ends_without_usage_is_one_entry(deployment: Deployment) -> None:
    """The client has all of it at once; the record waits for the count."""
    events = [say("Wasserstände "), say("regulieren "), say("Überlaufwehre."), DONE]
    model = deployment.plan("cancel", sends(events), name="unreported")
    answer = await deployment.post(model)
    assert answer.body == b"".join(events)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["estimator"]) == ("served", "estimated", "reference-3")
    assert entry["details"]["evidence"]["tokens_counted"] == 10


async def test_a_plain_answer_without_usage_is_counted_too(deployment: Deployment) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": WEIRS}, "finish_reason": "stop"}
    model = deployment.plan("cancel", json_instead({"id": "a", "choices": [choice]}), name="unstreamed")
    await deployment.post(model, stream=False)
    entry = await deployment.entry(model)
    assert entry["estimator"] == "reference-3"
    assert entry["completion_tokens"] == pytest.approx(WEIRS_TOKENS, rel=0.1)


async def test_reported_usage_is_not_counted(deployment: Deployment) -> None:
    usage = sse({"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}})
    model = deployment.plan("cancel", [Send(say(SAID)), Send(usage), Send(DONE)], name="reported")
    await deployment.post(model)
    entry = await deployment.entry(model)
    assert (entry["usage_source"], entry["estimator"], entry["completion_tokens"]) == ("reported", None, 4)


async def test_what_comes_beyond_the_room_is_estimated_alike(deployment: Deployment) -> None:
    """Of 150 KB, 64 are held."""
    events = [say(f"{number}. {SAID * 100}") for number in range(10)]
    model = deployment.plan("cancel", stalled(events), name="long")
    entry = await cut(deployment, model, b"".join(events))
    counted = entry["details"]["evidence"]["tokens_counted"]
    assert counted < 500 * SAID_TOKENS
    assert entry["completion_tokens"] == pytest.approx(1000 * SAID_TOKENS, rel=0.15)


async def test_a_cut_stream_of_a_model_with_a_tokenizer_is_billed_what_that_counts(deployment: Deployment) -> None:
    pytest.importorskip("tokenizers", reason="the extra tokenweir[tokenizers] is not installed")
    events = told("openai", 500)[:401]
    model = deployment.plan("counted", stalled(events))
    entry = await cut(deployment, model, b"".join(events), usage=True)
    chars = sum(count for name, count in entry["details"]["evidence"].items() if name in CHARS)
    assert chars > 1024, "more than a piece"
    assert (entry["usage_source"], entry["estimator"]) == ("estimated", "tokenizer-1")
    assert entry["details"]["evidence"]["tokens_counted"] == chars
    assert entry["completion_tokens"] == chars  # the tests' tokenizer: every character is one

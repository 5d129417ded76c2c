"""Azure's places for OpenAI's languages: where they are asked, what goes up, and what Azure adds to a stream."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.azure.deployments import AZURE
from proxy.metering.dialects.openai.strip import UsageStripper
from proxy.metering.usage import Usage
from tests.metering.fixtures import DONE, USAGE_EVENT, chunk, read_answer, read_stream, say, sse

BY_NAME = {dialect.name: dialect for dialect in AZURE}
DEPLOYED, V1 = BY_NAME["azure.chat"], BY_NAME["azure.chat_v1"]
ASK = {"messages": [{"role": "user", "content": "How much?"}], "stream": True}
SAFE = {"hate": {"filtered": False, "severity": "safe"}}
# Before the first word: what the filter found in the prompt. Behind the last: what it found in the answer.
PROMPT_FOUND = {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": SAFE}]}
ANSWER_FOUND = {"id": "", "choices": [{"index": 0, "content_filter_results": SAFE, "content_filter_offsets": {}}]}


metered = partial(read_stream, DEPLOYED)


def test_each_language_has_its_places() -> None:
    places = {dialect.name: (*dialect.paths, dialect.upstream_path) for dialect in AZURE}
    assert places["azure.chat"] == (
        "/openai/deployments/{model}/chat/completions",
        "/deployments/{model}/chat/completions",
    )
    assert places["azure.chat_v1"] == ("/openai/v1/chat/completions", "/v1/chat/completions")
    assert places["azure.responses_v1"] == ("/openai/v1/responses", "/v1/responses")
    assert {(dialect.key_header, dialect.query) for dialect in AZURE} == {("api-key", ("api-version",))}
    assert set(AZURE) <= set(DIALECTS)


def test_the_deployment_is_the_model_whatever_the_body_says() -> None:
    assert DEPLOYED.facts(ASK, "weir-eu").model == "weir-eu"
    assert DEPLOYED.facts({**ASK, "model": "other"}, "weir-eu").model == "weir-eu"
    assert V1.facts({**ASK, "model": "weir-eu"}).model == "weir-eu"


@pytest.mark.parametrize("named", [{}, {"model": "as-it-came"}])
def test_the_body_goes_up_as_it_came_but_for_the_question_for_usage(named: dict[str, str]) -> None:
    asked = {**ASK, **named}
    assert DEPLOYED.upstream_document(asked, upstream_model="up", inject_usage=False) == asked
    sent = DEPLOYED.upstream_document(asked, upstream_model="up", inject_usage=True)
    assert sent == {**asked, "stream_options": {"include_usage": True}}
    assert V1.upstream_document(asked, upstream_model="up", inject_usage=False)["model"] == "up"


def test_what_the_filter_found_is_neither_text_nor_usage() -> None:
    words = say("Much", " more", content_filter_results=SAFE)
    body = sse(PROMPT_FOUND, *words, chunk(finish="stop"), ANSWER_FOUND, USAGE_EVENT, DONE)
    result = metered(body)
    assert (result.usage, result.finish_reason, result.complete) == (Usage(9, None, 3, None, 12), "stop", True)
    assert (result.evidence.text_events, result.evidence.chars, result.response_id) == (2, 9, "chatcmpl-7")
    assert result.flags == ()
    stripper = UsageStripper()
    assert stripper.feed(body) + stripper.close() == body.replace(sse(USAGE_EVENT), b"")


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ({"error": {"code": "content_filter", "message": "no", "innererror": {"content_filter_result": SAFE}}}, True),
        ({"choices": [{"index": 0, "finish_reason": "content_filter", "message": {"content": ""}}]}, False),
    ],
)
def test_a_filtered_prompt_is_no_answer_and_a_filtered_answer_is_one(answer: dict[str, Any], failed: bool) -> None:
    result = read_answer(DEPLOYED, answer)
    assert (result.failed == "error_body", result.complete) == (failed, not failed)

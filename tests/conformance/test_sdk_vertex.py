"""Google's SDK with `vertexai=True`, and Anthropic's for Vertex, before the proxy: its keys are their access tokens.

Law: the SDK's own behaviour is the judge, and the ledger holds the usage that the SDK showed. What a client believes to
be its project leads nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.demo.script import Script, Send, Stall, json_script
from tests.conformance.stand import Stand, booked
from tests.metering.dialects import bedrock
from tests.metering.dialects.gemini import STORY, counts, sse, text

pytestmark = pytest.mark.thorough

UP = "/v1/projects/ours/locations/here/publishers"
CLAUDE: Any = {"max_tokens": 99, "messages": [{"role": "user", "content": "How high is the water?"}]}


@pytest.fixture
def google(stand: Stand, genai: Any) -> Iterator[Any]:
    """The SDK, with a key of ours as its access token."""
    from google.oauth2.credentials import Credentials

    with genai.Client(
        vertexai=True,
        project="theirs",
        location="there",
        credentials=Credentials(token=stand.key),  # type: ignore[no-untyped-call]
        http_options={"base_url": stand.url},
    ) as client:
        yield client.models


@pytest.fixture
def claude(stand: Stand, anthropic: Any) -> Iterator[Any]:
    with anthropic.AnthropicVertex(
        region="there", project_id="theirs", access_token=stand.key, base_url=f"{stand.url}/v1", max_retries=0
    ) as client:
        yield client


def path_of(stand: Stand, model: str) -> str:
    (seen,) = stand.seen(model)
    assert stand.key not in str(seen)
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["x-goog-api-key"] == stand.tokenweir.PROVIDER_KEY
    return str(seen["path"])


def test_google_s_stream(stand: Stand, google: Any) -> None:
    model = stand.plan("vertex", Script(steps=tuple(Send(sse(event)) for event in STORY)))
    chunks = list(google.generate_content_stream(model=f"publishers/google/models/{model}", contents="How high?"))
    usage = chunks[-1].usage_metadata
    assert booked(stand.entry(model)) == (usage.prompt_token_count, 45, usage.total_token_count)
    name = model.partition("/")[2]
    assert path_of(stand, model) == f"{UP}/google/models/{name}:streamGenerateContent?alt=sse"


def test_google_s_answer_count_and_vectors(stand: Stand, google: Any) -> None:
    answer = text("High.", finish="STOP", used=counts(9, 5))
    model = stand.plan("vertex", json_script(answer))
    assert google.generate_content(model=f"publishers/google/models/{model}", contents="How high?").text == "High."
    assert booked(stand.entry(model)) == (9, 5, 14)
    counted = stand.plan("vertex", json_script({"totalTokens": 19, "totalBillableCharacters": 60}))
    assert google.count_tokens(model=f"publishers/google/models/{counted}", contents="x").total_tokens == 19
    assert float(stand.entry(counted)["charge_usd"]) == 0
    vector = {"embeddings": {"statistics": {"truncated": False, "token_count": 3}, "values": [0.5, 0.25]}}
    embeds = stand.plan("vertex", json_script({"predictions": [vector]}), "text-embedding")
    found = google.embed_content(model=f"publishers/google/models/{embeds}", contents="weir")
    assert found.embeddings[0].values == [0.5, 0.25]
    assert booked(stand.entry(embeds)) == (3, 0, 3)
    assert path_of(stand, embeds).endswith(":predict")


def test_google_s_errors(stand: Stand, google: Any) -> None:
    from google.genai.errors import ClientError

    with pytest.raises(ClientError, match="does not exist") as refusal:
        google.generate_content(model="publishers/google/models/nobody", contents="x")
    assert (refusal.value.code, refusal.value.status) == (404, "NOT_FOUND")


def events() -> list[bytes]:
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in bedrock.anthropic()]


def test_claude_s_stream(stand: Stand, claude: Any) -> None:
    model = stand.plan("vertex", Script(steps=tuple(map(Send, events()))))
    with claude.messages.stream(model=model, **CLAUDE) as stream:
        assert tuple(stream.text_stream) == bedrock.TEXTS
        final = stream.get_final_message()
    assert booked(stand.entry(model)) == (final.usage.input_tokens, final.usage.output_tokens, 28)
    assert path_of(stand, model) == f"{UP}/anthropic/models/{model.partition('/')[2]}:streamRawPredict"
    body = stand.seen(model)[0]["body"]
    assert body.pop("anthropic_version")
    assert body == CLAUDE | {"stream": True}


def test_claude_s_answer_and_its_count(stand: Stand, claude: Any) -> None:
    told = {**bedrock.anthropic()[0]["message"], "content": [{"type": "text", "text": "High."}],
            "stop_reason": "end_turn"}  # fmt: skip
    model = stand.plan("vertex", json_script(told))
    assert claude.messages.create(model=model, **CLAUDE).content[0].text == "High."
    assert booked(stand.entry(model)) == (11, 1, 12)
    stand.provider.script("count-tokens", json_script({"input_tokens": 19}))
    assert claude.messages.count_tokens(model="vertex/claude", messages=CLAUDE["messages"]).input_tokens == 19
    assert float(stand.entry("vertex/claude")["charge_usd"]) == 0
    (seen,) = stand.provider.log("count-tokens")
    assert seen["path"] == f"{UP}/anthropic/models/count-tokens:rawPredict"
    assert seen["body"]["model"] == "claude"


def test_leaving_claude_early_is_booked(stand: Stand, claude: Any) -> None:
    model = stand.plan("vertex", Script(steps=(*map(Send, events()[:3]), Stall())))
    with claude.messages.stream(model=model, **CLAUDE) as stream:
        assert next(iter(stream.text_stream)) == bedrock.TEXTS[0]
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"], entry["prompt_tokens"]) == ("client_left", "estimated", 11)


def test_claude_s_errors(stand: Stand, claude: Any, anthropic: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        claude.messages.create(model="nobody", **CLAUDE)
    with pytest.raises(anthropic.AuthenticationError, match="API key"):
        claude.copy(access_token="tw-wrong").messages.create(model="vertex/m", **CLAUDE)

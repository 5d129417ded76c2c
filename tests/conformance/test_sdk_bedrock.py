"""AWS's official SDK (`boto3`) and Anthropic's for Bedrock before the proxy, with its keys as bearer tokens.

Law: the SDK's own behaviour is the judge, and the ledger holds the usage that the SDK showed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from proxy.demo.script import Fin, Script, Send, Stall, json_script
from tests.conformance.stand import Stand, booked
from tests.metering.dialects import bedrock
from tests.metering.dialects.bedrock import TEXTS, USAGE, chunk, converse, failure
from tests.support.certificates import Authority
from tests.support.faulty import FaultyPath

pytestmark = pytest.mark.thorough

STREAM = (("Content-Type", "application/vnd.amazon.eventstream"), ("x-amzn-RequestId", "0b5d-1"))
MESSAGES: Any = [{"role": "user", "content": [{"text": "How high is the water?"}]}]
CLAUDE: Any = {"max_tokens": 99, "messages": [{"role": "user", "content": "How high is the water?"}]}


@pytest.fixture(scope="module")
def session() -> Any:
    """boto3: imported where it is used, since it takes longer than the tests."""
    boto3 = pytest.importorskip("boto3", reason="the SDK `boto3` is not installed here: make test installs it")
    return boto3.Session(aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="secret-of-a-client")


@pytest.fixture(scope="module")
def edge(stand_process: Stand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """TLS before the stand, without which boto3 sends no bearer token: its URL, and the CA to trust."""
    authority = Authority(tmp_path_factory.mktemp("edge"))
    context = authority.server_context(authority.issue("edge"))
    with FaultyPath("127.0.0.1", stand_process.tokenweir.port, tls=context) as path:
        yield f"https://127.0.0.1:{path.port}", str(authority.file)


@pytest.fixture
def make(session: Any, edge: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], Any]]:
    """Makes a client with a key of ours; with None, one that signs."""
    from botocore.config import Config

    made = ExitStack()

    def client(key: str | None) -> Any:
        options: dict[str, Any] = {}
        if key is not None:
            monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", key)
            options["signature_version"] = "bearer"
        config = Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=20, **options)
        url, ca = edge
        one = session.client("bedrock-runtime", "us-east-1", endpoint_url=url, verify=ca, config=config)
        return made.enter_context(closing(one))

    with made:
        yield client


@pytest.fixture
def sdk(make: Callable[[str | None], Any], stand: Stand) -> Any:
    return make(stand.key)


def streamed(pieces: list[bytes], *more: Any) -> Script:
    return Script(steps=(*map(Send, pieces), *more), headers=STREAM)


def test_a_stream_of_converse(stand: Stand, sdk: Any) -> None:
    model = stand.plan("bedrock", streamed(converse()))
    answer = sdk.converse_stream(modelId=model, messages=MESSAGES, inferenceConfig={"maxTokens": 99})
    events = list(answer["stream"])
    texts = [one["contentBlockDelta"]["delta"]["text"] for one in events if "contentBlockDelta" in one]
    usage = events[-1]["metadata"]["usage"]
    assert tuple(texts) == TEXTS
    entry = stand.entry(model)
    assert booked(entry) == (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]) == (11, 17, 28)
    assert (entry["endpoint"], entry["streamed"], entry["events"]) == ("/model/{model}/converse-stream", True, 7)
    (seen,) = stand.seen(model)
    assert seen["path"] == f"/model/{model.partition('/')[2]}/converse-stream"
    assert seen["body"] == {"messages": MESSAGES, "inferenceConfig": {"maxTokens": 99}}
    assert stand.key not in str(seen)
    assert answer["ResponseMetadata"]["RequestId"] == entry["provider_response_id"] == "0b5d-1"


def test_an_answer_of_converse_with_a_call(stand: Stand, sdk: Any) -> None:
    call = {"toolUse": {"toolUseId": "tooluse_1", "name": "open_gate", "input": {"by_cm": 40}}}
    told = {"output": {"message": {"role": "assistant", "content": [call]}}, "stopReason": "tool_use", "usage": USAGE}
    model = stand.plan("bedrock", json_script(told | {"metrics": {"latencyMs": 7}}))
    answer = sdk.converse(modelId=model, messages=MESSAGES)
    assert answer["output"]["message"]["content"] == [call]
    assert booked(stand.entry(model)) == (11, 17, 28)


@pytest.mark.parametrize("family", ["claude", "llama"])
def test_a_stream_of_a_model_s_own_events(stand: Stand, sdk: Any, family: str) -> None:
    events = bedrock.anthropic()
    body: Any = CLAUDE | {"anthropic_version": "bedrock-2023-05-31"}
    if family == "llama":
        events = [{"generation": text, "stop_reason": None} for text in TEXTS]
        events += [{"generation": "", "stop_reason": "stop", "amazon-bedrock-invocationMetrics": bedrock.METRICS}]
        body = {"prompt": "How high is the water?", "max_gen_len": 99}
    model = stand.plan("bedrock", streamed([chunk(one) for one in events]))
    answer = sdk.invoke_model_with_response_stream(modelId=model, body=json.dumps(body), accept="application/json")
    told = [json.loads(one["chunk"]["bytes"]) for one in answer["body"]]
    assert told == events
    assert booked(stand.entry(model)) == (11, 17, 28)
    headers = {name.lower(): value for name, value in stand.seen(model)[0]["headers"]}
    assert headers["x-amzn-bedrock-accept"] == headers["content-type"] == "application/json"


def test_an_answer_of_a_model_that_only_its_head_counts(stand: Stand, sdk: Any) -> None:
    told = {"outputs": [{"text": "High.", "stop_reason": "stop"}]}
    counts = (("X-Amzn-Bedrock-Input-Token-Count", "11"), ("X-Amzn-Bedrock-Output-Token-Count", "17"))
    script = json_script(told)
    model = stand.plan("bedrock", Script(script.steps, headers=(*script.headers, *counts), framing="length"))
    answer = sdk.invoke_model(modelId=model, body=json.dumps({"prompt": "x", "max_tokens": 9}))
    assert json.loads(answer["body"].read()) == told
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-bedrock-output-token-count"] == "17"
    assert booked(stand.entry(model)) == (11, 17, 28)


def test_counting_is_free(stand: Stand, sdk: Any) -> None:
    model = stand.plan("bedrock", json_script({"inputTokens": 19}))
    assert sdk.count_tokens(modelId=model, input={"converse": {"messages": MESSAGES}})["inputTokens"] == 19
    assert float(stand.entry(model)["charge_usd"]) == 0


def test_an_arn_is_one_name(stand: Stand, sdk: Any) -> None:
    """Escaped by the SDK, and escaped again on the way up."""
    arn = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.amazon.nova-lite-v1:0"
    stand.provider.script(arn, streamed(converse()))
    list(sdk.converse_stream(modelId=f"bedrock/{arn}", messages=MESSAGES)["stream"])
    assert booked(stand.entry(f"bedrock/{arn}")) == (11, 17, 28)
    (seen,) = stand.provider.log(arn)
    assert seen["path"] == (
        "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.amazon.nova-lite-v1%3A0/"
        "converse-stream"
    )


def test_leaving_early_is_booked(stand: Stand, sdk: Any) -> None:
    model = stand.plan("bedrock", streamed(converse()[:2], Stall()))
    stream = sdk.converse_stream(modelId=model, messages=MESSAGES)["stream"]
    events = iter(stream)
    assert [next(iter(next(events))) for _ in range(2)] == ["messageStart", "contentBlockDelta"]
    stream.close()
    entry = stand.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert 1 <= entry["completion_tokens"] < 17


def test_an_error_in_midstream_is_raised_and_booked(stand: Stand, sdk: Any) -> None:
    from botocore.exceptions import EventStreamError

    model = stand.plan("bedrock", streamed([*converse()[:2], failure("throttlingException")]))
    heard = []
    stream = sdk.converse_stream(modelId=model, messages=MESSAGES)["stream"]
    with closing(stream), pytest.raises(EventStreamError, match="the sluice is shut"):
        heard.extend(stream)
    entry = stand.entry(model)
    assert (len(heard), entry["outcome"], entry["usage_source"]) == (2, "upstream_failed", "estimated")
    assert (entry["details"]["failed"], entry["completion_tokens"] >= 1) == ("error_event", True)


def test_a_stream_that_breaks_off_is_no_whole_answer(stand: Stand, sdk: Any) -> None:
    from urllib3.exceptions import ProtocolError

    model = stand.plan("bedrock", streamed(converse()[:2], Fin()))
    stream = sdk.converse_stream(modelId=model, messages=MESSAGES)["stream"]
    with pytest.raises(ProtocolError):
        list(stream)
    stream.close()
    assert stand.entry(model)["outcome"] == "upstream_failed"


@pytest.mark.parametrize(
    ("key", "fields", "code", "says"),
    [
        ("tw-wrong", {}, "UnrecognizedClientException", "API key"),
        ("narrow", {"modelId": "electron"}, "AccessDeniedException", "model"),
        ("own", {"modelId": "no-such-model"}, "ResourceNotFoundException", "model"),
        ("own", {"messages": []}, "ValidationException", "messages: "),
        (None, {}, "UnrecognizedClientException", "AWS_BEARER_TOKEN_BEDROCK"),  # signed with SigV4
    ],
)
def test_our_refusals_are_its_own_errors(
    stand: Stand,
    make: Callable[..., Any],
    key: str | None,
    fields: dict[str, Any],
    code: str,
    says: str,
) -> None:
    from botocore.exceptions import ClientError

    secret = {"narrow": stand.narrow.secret, "own": stand.key}.get(key or "", key)
    with pytest.raises(ClientError) as refusal:
        make(secret).converse(**({"modelId": "bedrock/weir", "messages": MESSAGES} | fields))
    error = refusal.value.response["Error"]
    assert error["Code"] == code
    assert says in error["Message"]


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [(400, "ValidationException", "refused_upstream"), (429, "ThrottlingException", "refused_upstream")],
)
def test_a_providers_refusal_is_the_same_error_behind_the_proxy(
    stand: Stand, sdk: Any, status: int, code: str, outcome: str
) -> None:
    from botocore.exceptions import ClientError

    script = json_script({"message": "the sluice is shut"}, status)
    more = (("x-amzn-ErrorType", f"{code}:http://internal.amazon.com/coral/"),)
    model = stand.plan(
        "bedrock", Script(script.steps, status=status, headers=(*script.headers, *more), framing="length")
    )
    with pytest.raises(ClientError, match="the sluice is shut") as refusal:
        sdk.converse(modelId=model, messages=MESSAGES)
    assert refusal.value.response["Error"]["Code"] == code
    entry = stand.entries(model, len(stand.seen(model)))[0]
    assert (entry["outcome"], float(entry["charge_usd"])) == (outcome, 0)


@pytest.mark.parametrize("path", ["invoke-with-bidirectional-stream", "async-invoke", "apply"])
def test_what_cannot_be_metered_is_not_served(stand: Stand, path: str) -> None:
    import httpx2

    where = f"/model/bedrock%2Fm/{path}" if "invoke-with" in path else f"/{path}"
    answer = httpx2.post(stand.url + where, json={}, headers={"Authorization": f"Bearer {stand.key}"})
    assert answer.status_code == 404


def test_anthropic_s_sdk_for_bedrock(stand: Stand, anthropic: Any) -> None:
    model = stand.plan("bedrock", streamed([chunk(one) for one in bedrock.anthropic()]))
    with anthropic.AnthropicBedrock(
        api_key=stand.key, base_url=stand.url, aws_region="us-east-1", max_retries=0
    ) as client:
        with client.messages.stream(model=model, **CLAUDE) as stream:
            assert tuple(stream.text_stream) == TEXTS
            final = stream.get_final_message()
        assert booked(stand.entry(model)) == (final.usage.input_tokens, final.usage.output_tokens, 28)
        told = {**bedrock.anthropic()[0]["message"], "content": [{"type": "text", "text": "High."}],
                "stop_reason": "end_turn"}  # fmt: skip
        whole = stand.plan("bedrock", json_script(told))
        assert client.messages.create(model=whole, **CLAUDE).content[0].text == "High."
        assert booked(stand.entry(whole)) == (11, 1, 12)
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            client.messages.create(model="no-such-model", **CLAUDE)
    body = stand.seen(model)[0]["body"]
    assert body.pop("anthropic_version")
    assert body == CLAUDE

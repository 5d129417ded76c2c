"""What a provider could read in another way than the proxy is refused: names that are equal but for case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.http import field_names
from proxy.http.errors import ApiError
from proxy.http.field_names import refuse_ambiguous_names
from proxy.http.request_body import CODECS
from proxy.metering.dialect import Dialect, RequestBody
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.openai_realtime.session import OPENAI_REALTIME
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.request import InvalidField
from tests.gateway.deployment import Deployment
from tests.support.net import chat_request, connect

MESSAGES = [{"role": "user", "content": "x"}]


def refused(document: dict[str, Any]) -> tuple[str | None, str | None]:
    """The field and the code of the refusal."""
    with pytest.raises(ApiError) as refusal:
        CODECS[RequestBody.JSON].parse(json.dumps(document).encode(), "application/json")
    assert refusal.value.status == 400
    json.loads(refusal.value.body())
    return refusal.value.param, refusal.value.code


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({"model": "cheap", "Model": "dear"}, "model"),
        ({"MODEL": "dear", "model": "cheap"}, "model"),
        ({"stream": False, "\u017ftream": True}, "stream"),
        ({"to\u212aen": 1, "token": 2}, "token"),
        ({"stream_options": {"include_usage": True, "Include_Usage": False}}, "stream_options.include_usage"),
        ({"options": {"temperature": 1, "Temperature": 2}}, "Temperature"),
        ({"messages": [*MESSAGES, {"role": "user", "content": "x", "Content": "long"}]}, "Content"),
        ({"É": 1, "é": 2}, "é"),
    ],
)
def test_names_that_are_equal_but_for_case_are_duplicates(document: dict[str, Any], param: str) -> None:
    assert refused(document) == (param, "duplicate_key")


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({"Model": "dear", "messages": MESSAGES}, "model"),
        ({"model": "m", "Stream": True}, "stream"),
        ({"model": "m", "ma\u017f_tokens": 1, "MAX_TOKENS": 9}, "max_tokens"),
        ({"model": "m", "stream_options": {"Include_usage": False}}, "stream_options.include_usage"),
        ({"contents": [], "generationconfig": {}}, "generationConfig"),
        ({"contents": [], "generationConfig": {"maxoutputtokens": 9}}, "generationConfig.maxOutputTokens"),
        ({"options": {"NUM_PREDICT": 9}}, "options.num_predict"),
        ({"inferenceConfig": {"MaxTokens": 9}}, "inferenceConfig.maxTokens"),
    ],
)
def test_a_known_field_in_another_case_is_refused(document: dict[str, Any], param: str) -> None:
    assert refused(document) == (param, "invalid_key")


@pytest.mark.parametrize(
    "document",
    [
        {"tools": [{"function": {"parameters": {"properties": {"n": {}, "N": {}}}}}]},
        {"metadata": {"Model": "a", "Stream": "b"}},
        {"generationConfig": {"maxOutputTokens": 1}, "generation_config": {"max_output_tokens": 1}},
        {"Unknown": 1, "unknown_2": 2},
        {"messages": [{"role": "user", "content": "x"}, {"Role": "y"}]},
    ],
)
def test_other_names_are_the_client_s_own(document: dict[str, Any]) -> None:
    assert CODECS[RequestBody.JSON].parse(json.dumps(document).encode(), "application/json") == document


def test_fields_of_forms_are_compared_too() -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\nm\r\n'
    body = part % b"model" + part % b"Model" + b"--b--\r\n"
    with pytest.raises(ApiError) as refusal:
        CODECS[RequestBody.MULTIPART].parse(body, "multipart/form-data; boundary=b")
    assert refusal.value.param == "model"


class Noted(dict[str, Any]):
    """Remembers which names were looked up."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


# Each dialect reads on until a field is missing: with these, none is.
FULL: dict[str, Any] = {
    "model": "m", "messages": MESSAGES, "contents": [{"parts": [{"text": "x"}]}], "query": "q", "documents": ["d"],
    "prompt": "p", "max_tokens": 5, "agent_id": "a", "texts": ["x"], "content": {"parts": []}, "image": {"url": "u"},
    "requests": [{"content": {"parts": []}}], "document": {"document_url": "u"},
}  # fmt: skip
INPUTS: tuple[dict[str, Any], ...] = (
    {"input": "x"},
    {"input": [{"role": "user", "content": "x"}]},
    {"input": {"converse": {}}, "instances": [{"prompt": "x"}], "parameters": {}},
)


@pytest.mark.parametrize(
    "dialect",
    [one for one in DIALECTS if one.is_posted and one.request_body is not RequestBody.MULTIPART],
    ids=lambda d: d.name,
)
def test_the_list_has_every_field_that_a_dialect_reads(dialect: Dialect) -> None:
    read: set[str] = set()
    reached = False
    for more in INPUTS:
        document = Noted({**FULL, **more})
        try:
            dialect.facts(document, None)
            reached = True
        except InvalidField:
            pass
        read |= document.names
    assert reached
    assert read <= set(field_names._FIELDS)


MESSAGES_UP: tuple[tuple[Dialect, dict[str, Any]], ...] = (
    (OPENAI_RESPONSES, {"type": "response.create", "model": "m", "input": "x", "prompt_cache_options": {}}),
    (OPENAI_REALTIME, {"type": "response.create", "event_id": "e", "response": {"instructions": "x"}}),
    (OPENAI_REALTIME, {"type": "session.update", "session": {"type": "realtime"}}),
    (OPENAI_REALTIME, {"type": "conversation.item.create", "item": {"content": []}}),
    (OPENAI_REALTIME, {"type": "input_audio_buffer.append", "audio": "AAAA"}),
)


@pytest.mark.parametrize(("dialect", "message"), MESSAGES_UP)
def test_the_list_has_every_field_that_is_read_of_a_message(dialect: Dialect, message: dict[str, Any]) -> None:
    assert dialect.socket is not None
    noted = Noted({name: Noted(value) if isinstance(value, dict) else value for name, value in message.items()})
    dialect.socket.wire().read_message(noted)
    assert noted.names <= set(field_names._FIELDS)
    for name, value in noted.items():
        if isinstance(value, Noted) and name != "item":
            assert value.names <= set(field_names._FIELDS_OF[name])


@pytest.mark.parametrize("field", ["Model", "\u017ftream"])
async def test_a_cheap_model_s_request_cannot_name_a_dear_one(deployment: Deployment, field: str) -> None:
    model = deployment.plan("cancel", [])
    document = {"model": model, "messages": MESSAGES, field: "dear"}
    async with await connect(deployment.url) as client:
        await client.send(chat_request(document, key=deployment.key))
        response = await client.read()
    assert response.status == 400
    assert deployment.seen(model) == []


def test_a_long_conversation_is_compared_once_per_set_of_names() -> None:
    refuse_ambiguous_names({"messages": MESSAGES * 10_000})

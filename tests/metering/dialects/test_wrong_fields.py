"""Requests that are refused, in every dialect: each names the field that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.http.json_body import parse_object
from proxy.metering.dialect import NAME, Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE, BEDROCK_COUNT_TOKENS
from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.cohere.embed import COHERE_EMBED
from proxy.metering.dialects.gemini.embed import GEMINI_BATCH_EMBED, GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.dialects.gemini.generate import GEMINI_STREAM
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from proxy.metering.dialects.mistral.completions import MISTRAL_AGENTS, MISTRAL_FIM
from proxy.metering.dialects.mistral.ocr import MISTRAL_OCR
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT, OLLAMA_GENERATE
from proxy.metering.dialects.ollama.embed import OLLAMA_EMBED, OLLAMA_EMBEDDINGS
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS, OPENAI_MODERATIONS, OPENAI_RERANK
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGE_EDITS, OPENAI_IMAGE_VARIATIONS, OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.dialects.vertex.publishers import VERTEX_PREDICT
from proxy.metering.request import InvalidField, RequestFacts, Upload
from proxy.metering.usage import TOKENS_MAX
from tests.http.documents import cut, whole
from tests.metering.dialects import bedrock, gemini

MODEL = {"model": "weir"}
CHAT = MODEL | {"messages": [{"role": "user", "content": "How much?"}]}
TEXT = MODEL | {"prompt": "How much?"}
INPUT = MODEL | {"input": "How much?"}
RANK = MODEL | {"query": "who", "documents": ["one", {"text": "two!", "id": 7}]}
MP3 = Upload("a.mp3", "audio/mpeg", b"\xff\xfb" * 8000)
PNG = Upload("a.png", "image/png", b"\x89PNG")
HEAR = MODEL | {"file": MP3}
EDIT = TEXT | {"image[]": [PNG, PNG], "stream": "false"}

Changed = list[tuple[dict[str, Any], str]]
"""what is changed in a request → the field that is refused"""


def each(**fields: tuple[Any, ...]) -> Changed:
    """Each field with each of these values, by which it is refused itself."""
    return [({name: wrong}, name) for name, values in fields.items() for wrong in values]


# A dialect, a request that is right, and what makes it wrong.
REFUSED: list[tuple[Dialect, dict[str, Any], Changed]] = [
    (OPENAI_CHAT, CHAT, [
        *each(model=(None, "", 7, ["m"], "m" * 257), stream=(1, "true", [], 0), messages=(None, [], {}, "hi")),
        *each(n=(True, "5", 1.0, 0, -1, 129, 10**30, float("nan")), max_completion_tokens=(False, "5", 2.5, 0)),
        *each(max_tokens=(True, "5", 1.0, 0, -2, -1.0, 10**9, float("inf"))),
        *[({"stream": True, "stream_options": wrong}, "stream_options") for wrong in ([], "x", 1, True)],
        *[({"stream_options": {"include_usage": wrong}}, "stream_options.include_usage")
          for wrong in (1, "true", {}, 0)],
        ({"messages": [{"role": "user"}, "hi"]}, "messages[1]"),
    ]),
    (OPENAI_COMPLETIONS, TEXT, [
        *each(prompt=(7, {}, [], True), best_of=(0, "2", 129), n=(0, 1.5), max_tokens=(-2, "5"), echo=("yes",)),
        *each(model=(None,)),
        *[({"prompt": wrong}, "prompt[0]") for wrong in ([None], [True], [{}], [[]], [1.0])],
        *[({"prompt": wrong}, "prompt[1]") for wrong in (["a", 1], [1, "a"], [1, True], [[1], 2], [[1], []])],
        ({"prompt": [[1], [2, "x"]]}, "prompt[1][1]"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
    ]),
    (OPENAI_RESPONSES, INPUT, [
        *each(model=(5,), input=(5,), stream=("yes",), max_output_tokens=(0, 1.0), background=(1,)),
        *each(previous_response_id=(7, ["a"], "r" * 257, "resp\n1", "\ud800", "resp_\udfff", "\0")),
        ({"input": ["hi"]}, "input[0]"),
    ]),
    (OPENAI_EMBEDDINGS, INPUT, [
        *each(model=(None,), input=(None, [])),
        ({"input": ["a", None]}, "input[1]"), ({"input": [{}, 1]}, "input[1]"),
    ]),
    (OPENAI_MODERATIONS, INPUT, each(model=(7,), input=(7,))),
    (OPENAI_RERANK, RANK, [
        *each(query=(None,), documents=("x",), model=(None,)), ({"documents": ["x", 1]}, "documents[1]"),
    ]),
    (OPENAI_IMAGES, TEXT, each(prompt=(None,), n=(0,), stream=("yes",), model=(None,))),
    (OPENAI_IMAGE_EDITS, TEXT, [({}, "image"), *each(image=("http://x.test/1",))]),
    (OPENAI_IMAGE_EDITS, EDIT,
     each(prompt=(None,), n=("0", "129", "-1", "1.5", "x", "\u0663", "9" * 99), stream=("yes",))),
    (OPENAI_IMAGE_VARIATIONS, {"image": PNG}, each(image=("a",), n=("x",), model=("",))),
    (OPENAI_SPEECH, INPUT, each(input=(["x"],), stream_format=("wav",), model=(None,))),
    (OPENAI_TRANSCRIPTIONS, HEAR, each(file=(None, "x"), model=(MP3,), stream=("yes",), prompt=(MP3,))),
    (ANTHROPIC_MESSAGES, CHAT | {"max_tokens": 50}, [
        *each(model=(None, ""), max_tokens=(-1, "50", True), stream=(1,), messages=([], None)),
        ({"messages": ["hi"]}, "messages[0]"),
    ]),
    (MISTRAL_FIM, TEXT, each(prompt=(None, "", ["a"]), suffix=(1,), max_tokens=(-1,), stream=(1,))),
    (MISTRAL_AGENTS, CHAT | {"agent_id": "ag:1"}, each(agent_id=(None,))),
    (MISTRAL_OCR, MODEL, each(document=(None, "http://x.test/a.pdf", {}, {"type": "document_url"}))),
    (COHERE_CHAT, CHAT, each(messages=([], "hi"), model=("",), stream=("yes",), max_tokens=(1.0, -1))),
    (COHERE_EMBED, MODEL, [
        ({}, "texts"), *each(texts=([],), images=("b",), inputs=([],)),
        ({"texts": ["a"], "images": ["b"]}, "images"), ({"texts": ["a", 1]}, "texts[1]"),
        ({"inputs": [{"content": "a"}]}, "inputs[0].content"), ({"texts": ["a"], "model": 1}, "model"),
    ]),
    (OLLAMA_CHAT, CHAT, [
        *each(messages=([],), stream=("no",), options=([],)),
        *[({"options": {"num_predict": wrong}}, "options.num_predict") for wrong in (7.5, TOKENS_MAX + 1)],
    ]),
    (OLLAMA_GENERATE, TEXT, each(model=("",), prompt=("", ["a"]), system=(1,))),
    (OLLAMA_EMBED, MODEL, [({}, "input"), ({"input": [{}]}, "input[0]")]),
    (OLLAMA_EMBEDDINGS, MODEL, each(prompt=(["a"],))),
    (GEMINI_STREAM, gemini.ASKED, [
        *each(contents=(None, [], "How much?"), generationConfig=(5,), generation_config=([],)),
        *each(systemInstruction=("short",)),
        *[({"generationConfig": {"maxOutputTokens": wrong}}, "generationConfig.maxOutputTokens")
          for wrong in ("50", 50.0, True, 0)],
        ({"contents": [{}, "x"]}, "contents[1]"),
        ({"generationConfig": {}, "generation_config": {}}, "generation_config"),
        ({"generation_config": {"max_output_tokens": -1}}, "generation_config.max_output_tokens"),
        ({"generationConfig": {"maxOutputTokens": 5, "max_output_tokens": 9}}, "generationConfig.max_output_tokens"),
        ({"generationConfig": {"candidateCount": 9}}, "generationConfig.candidateCount"),
    ]),
    (GEMINI_EMBED, {}, [({}, "content"), *each(content=("text",))]),
    (GEMINI_BATCH_EMBED, {}, [
        ({}, "requests"), ({"requests": [{"content": {"parts": [{"text": "How much?"}]}}, {}]}, "requests[1].content"),
    ]),
    (GEMINI_COUNT_TOKENS, {}, [({}, "contents"), *each(generateContentRequest=([],))]),
    (GEMINI_INTERACTIONS, INPUT, [
        *each(background=(True,), agent=("a",), model=("",), stream=("yes",), input=(7,), generation_config=([],)),
        ({"generation_config": {"max_output_tokens": 0}}, "generation_config.max_output_tokens"),
    ]),
    (BEDROCK_CONVERSE, {}, [({}, "messages")]),
    (BEDROCK_CONVERSE, bedrock.ASKED, [
        *each(inferenceConfig=(1,)),
        *[({"inferenceConfig": {"maxTokens": wrong}}, "inferenceConfig.maxTokens") for wrong in ("9", True)],
        *[({"guardrailConfig": wrong}, "guardrailConfig.trace")
          for wrong in ({"guardrailIdentifier": "g"}, {"trace": "disabled"})],
    ]),
    (BEDROCK_INVOKE, {"prompt": "x"}, each(max_gen_len=(0,), num_generations=(999,))),
    (BEDROCK_INVOKE, {"inputText": "x"},
     [({"textGenerationConfig": {"maxTokenCount": -1}}, "textGenerationConfig.maxTokenCount")]),
    (BEDROCK_COUNT_TOKENS, {}, [({}, "input")]),
    (VERTEX_PREDICT, {}, [
        ({}, "instances"), *each(instances=([],)), ({"instances": [1]}, "instances[0]"),
        ({"instances": [{"content": "a"}, {"image": {}}]}, "instances[1]"),
        ({"instances": [{"prompt": "a"}], "parameters": {"sampleCount": 99}}, "parameters.sampleCount"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "right", "changed"), REFUSED, ids=lambda value: getattr(value, "name", ""))
def test_a_wrong_field_is_named(dialect: Dialect, right: dict[str, Any], changed: Changed) -> None:
    named = ["m"] if NAME in dialect.endpoint else []
    for change, field in changed:
        with pytest.raises(InvalidField) as refusal:
            dialect.facts(right | change, *named)
        assert refusal.value.param == field, change
        assert str(refusal.value).startswith(f"{field}: "), change


@pytest.mark.parametrize(("dialect", "right", "changes"), REFUSED, ids=[dialect.name for dialect, *_ in REFUSED])
def test_it_makes_no_difference_whether_strings_are_long(
    dialect: Dialect, right: dict[str, Any], changes: Changed
) -> None:
    for change in ({}, *(change for change, _ in changes)):
        try:
            body = json.dumps(right | change, allow_nan=False).encode()
        except (TypeError, ValueError):
            continue  # a form, or no JSON
        plain = parse_object(body)
        with cut(3):
            long = parse_object(body)
        facts = _facts_of(dialect, plain)
        assert _facts_of(dialect, long) == facts, body
        if isinstance(facts, RequestFacts):
            sent = dialect.upstream_document(long, upstream_model="m", inject_usage=True)
            assert whole(sent) == dialect.upstream_document(plain, upstream_model="m", inject_usage=True), body


def _facts_of(dialect: Dialect, document: dict[str, Any]) -> RequestFacts | tuple[str, str]:
    try:
        return dialect.facts(document)
    except InvalidField as refusal:
        return refusal.param, str(refusal)

"""The request side: exact types, named fields, what goes up."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.metering.dialects.openai.request import facts, upstream_document
from proxy.metering.request import RequestFacts
from proxy.metering.usage import PromptEvidence

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def test_plain_request() -> None:
    assert facts(ASK) == RequestFacts(
        model="m", streamed=False, usage_asked=False, completion_tokens_max=None,
        prompt=PromptEvidence(messages=1, chars_latin=5),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": None, "n": None}, None),
        ({"n": 2}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": -1, "n": 3}, None),
        ({"max_tokens": 5, "max_completion_tokens": -1}, None),
    ],
)
def test_limit_on_output(fields: dict[str, Any], expected: int | None) -> None:
    assert facts({**ASK, **fields}).completion_tokens_max == expected


@pytest.mark.parametrize(
    ("fields", "streamed", "asked"),
    [
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": {"include_usage": None}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
        ({"stream": None, "stream_options": {"include_usage": True}}, False, False),
    ],
)
def test_streaming(fields: dict[str, Any], streamed: bool, asked: bool) -> None:
    found = facts({**ASK, **fields})
    assert (found.streamed, found.usage_asked) == (streamed, asked)


def test_prompt_evidence() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "name": "Ann",
            "content": [
                {"type": "text", "text": "水 да"},
                {"type": "image_url", "image_url": {"url": "data:" + "A" * 999}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, "loose", 7]},
    ]
    prompt = facts({"model": "m", "messages": messages, "tools": [{"a": "\ud800"}]}).prompt
    expected = PromptEvidence(
        messages=4,
        chars_latin=18,
        chars_wide=1,
        chars_other=2,
        tool_chars=12 + 16,
        images=1,
        attachments=1,
        blanks=2,
        marks=1,
        tools=1,
        calls=1,
        call_chars=12,
    )
    assert prompt == expected
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "1"}, {"id": "2"}]},
        {"role": "tool", "content": "7"},
        {"role": "function", "content": "8"},
        {"role": ["tool"], "function_call": {}},
    ]
    document = {"model": "m", "messages": messages, "tools": 7, "functions": [{}, {}], "response_format": {"type": "x"}}
    prompt = facts(document).prompt
    assert (prompt.tools, prompt.calls, prompt.results) == (2, 2, 2)
    assert (prompt.tool_chars, prompt.call_chars, prompt.schema_chars) == (1 + 7 + 23 + 12, 23, 12)


def test_upstream_document_changes_only_what_it_must() -> None:
    asked = {
        **ASK,
        "stream": True,
        "stream_options": {"include_obfuscation": False, "include_usage": False},
        "user": "u",
    }
    sent = upstream_document(asked, upstream_model="big", inject_usage=True)
    assert sent == {**asked, "model": "big", "stream_options": {"include_obfuscation": False, "include_usage": True}}
    assert asked["stream_options"] == {"include_obfuscation": False, "include_usage": False}
    assert sent["messages"] is asked["messages"]
    assert upstream_document({**ASK, "stream": True}, upstream_model="m", inject_usage=True)["stream_options"] == {
        "include_usage": True
    }


@pytest.mark.parametrize(
    "document", [{**ASK, "stream": False}, {**ASK, "stream_options": {"x": 1}}, {**ASK, "stream": True}]
)
def test_nothing_is_injected_where_not_wanted(document: dict[str, Any]) -> None:
    inject = document.get("stream") is not True
    assert upstream_document(document, upstream_model="up", inject_usage=inject) == {**document, "model": "up"}

"""Requests of generateContent: the facts for admission, and the document for the provider.

Invariants: only fields that admission needs are read, in either spelling of the API (`maxOutputTokens`,
`max_output_tokens`) but not both. The model is that of the path, not of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.request import (
    InvalidField,
    RequestFacts,
    integer,
    messages_of,
    model_of,
    object_in,
    prompt_evidence,
    service_asked,
)
from proxy.metering.usage import TOKENS_MAX, PromptEvidence

# Google's own limit of candidateCount.
N_MAX = 8
# Fields that the model reads as JSON: of generationConfig, of a part.
_SCHEMAS = (
    "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema", "_responseJsonSchema",
    "_response_json_schema",
)  # fmt: skip
_CALLS = (
    "functionCall", "function_call", "functionResponse", "function_response", "toolCall", "tool_call", "toolResponse",
    "tool_response", "executableCode", "executable_code", "codeExecutionResult", "code_execution_result",
)  # fmt: skip
_MEDIA = ("inlineData", "inline_data", "fileData", "file_data")


def upstream_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy without a model: the path names it."""
    return {name: value for name, value in document.items() if name != "model"}


def count_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request to count the tokens of contents, or of a whole request. Raises InvalidField."""
    _, asked = _object(document, *_COUNTED)
    return facts(dict(asked) or document, named)


def embedded(document: dict[str, Any]) -> PromptEvidence:
    """The prompt of a request for one vector. Raises InvalidField."""
    return _prompt([_content(document, "content")], {}, {})


def embedded_batch(document: dict[str, Any]) -> PromptEvidence:
    """The prompt of a request for several vectors. Raises InvalidField."""
    requests = messages_of(document, "requests")
    return _prompt([_content(one, f"requests[{at}].content") for at, one in enumerate(requests)], {}, {})


def _content(document: Mapping[str, Any], param: str) -> dict[str, Any]:
    if not isinstance(content := document.get("content"), dict):
        raise InvalidField(param, "must be an object")
    return content


def naming_model(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy with the upstream model wherever the body names one: Google requires the model of the path."""
    sent = _renamed(document, upstream_model)
    for name in _COUNTED:
        if isinstance(one := sent.get(name), dict):
            sent[name] = _renamed(one, upstream_model)
    if isinstance(several := sent.get("requests"), list):
        sent["requests"] = [_renamed(one, upstream_model) for one in several]
    return sent


def _renamed(document: dict[str, Any], upstream_model: str) -> dict[str, Any]:
    return {**document, "model": f"models/{upstream_model}"} if "model" in document else {**document}


_COUNTED = ("generateContentRequest", "generate_content_request")


def facts(document: dict[str, Any], named: str | None = None, *, streamed: bool = False) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    where, config = _object(document, "generationConfig", "generation_config")
    limit = _integer(where, config, "maxOutputTokens", "max_output_tokens", at_most=TOKENS_MAX)
    n = _integer(where, config, "candidateCount", "candidate_count", at_most=N_MAX) or 1
    return RequestFacts(
        model=named or model_of(document),
        streamed=streamed,
        completion_tokens_max=None if limit is None else n * limit,
        n=n,
        prompt=_prompt(messages_of(document, "contents"), document, config),
        served_as=service_asked(document),
    )


def _spelled(document: Mapping[str, Any], camel: str, snake: str, within: str = "") -> str:
    """The spelling that `document` uses. Raises InvalidField if it uses both."""
    if camel in document and snake in document:
        raise InvalidField(within + snake, f"must not be combined with {camel}, which is the same field")
    return snake if snake in document else camel


def _object(document: Mapping[str, Any], camel: str, snake: str) -> tuple[str, Mapping[str, Any]]:
    name = _spelled(document, camel, snake)
    return name, object_in(document, name)


def _integer(where: str, config: Mapping[str, Any], camel: str, snake: str, *, at_most: int) -> int | None:
    name = _spelled(config, camel, snake, f"{where}.")
    return integer(config, name, f"{where}.{name}", at_most=at_most)


def _prompt(contents: list[dict[str, Any]], document: Mapping[str, Any], config: Mapping[str, Any]) -> PromptEvidence:
    texts: list[str] = []
    media: list[str] = []
    structures = [document.get("tools"), *(config[name] for name in _SCHEMAS if name in config)]
    _, system = _object(document, "systemInstruction", "system_instruction")
    for content in (system, *contents):
        parts = content.get("parts")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                _read_part(part, texts, structures, media)
    images = sum(kind.startswith("image/") for kind in media)
    return prompt_evidence(
        texts,
        messages=len(contents) + bool(system),
        structures=[value for value in structures if value],
        images=images,
        attachments=len(media) - images,
    )


def _read_part(part: Mapping[str, Any], texts: list[str], structures: list[object], media: list[str]) -> None:
    """Add the part to `texts`, to `structures` (JSON), or its type to `media`."""
    if isinstance(text := part.get("text"), str):
        texts.append(text)
    structures += [part[name] for name in _CALLS if name in part]
    for blob in [part[name] for name in _MEDIA if isinstance(part.get(name), dict)]:
        kind = blob.get("mimeType", blob.get("mime_type"))
        media.append(kind if isinstance(kind, str) else "")

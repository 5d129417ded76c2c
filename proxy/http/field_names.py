"""Refuses names in a request body that a provider could take for other names.

Invariant: the proxy and the provider read equal fields. Go's JSON parser, which many servers use (for example Ollama),
ignores the case of field names and takes the last of several; the proxy's, like all documented APIs, does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from proxy.http.errors import ApiError, bad_request

# The fields that the dialects read; a test compares the list with them.
_FIELDS = (
    "additionalModelRequestFields", "agent", "agent_id", "anthropic_version", "aspect_ratio", "audio", "background",
    "bbox_annotation_format", "best_of", "chat_history", "content", "contents", "context", "document",
    "document_annotation_format", "documents", "echo", "event_id", "file", "file_id", "file_url", "format", "functions",
    "generate", "generate_content_request", "generateContentRequest", "generation_config", "generationConfig",
    "guardrailConfig", "image", "imageGenerationConfig", "images", "inferenceConfig", "input", "input_type", "inputs",
    "inputText", "instances", "instructions", "item", "max_completion_tokens", "max_gen_len", "max_new_tokens",
    "max_output_tokens", "max_tokens", "max_tokens_to_sample", "maxTokens", "message", "messages", "model", "n",
    "num_generations", "numResults", "options", "output_config", "output_format", "pages", "parameters",
    "performanceConfig", "preamble", "previous_response_id", "prompt", "prompt_cache_options", "quality", "query",
    "requests", "response", "response_format", "serviceTier", "session", "singleEmbeddingParams", "store", "stream",
    "stream_format", "stream_id", "stream_options", "suffix", "system", "system_instruction", "systemInstruction",
    "taskType", "text", "textGenerationConfig", "texts", "textToImageParams", "toolConfig", "tools", "type", "url",
)  # fmt: skip
# The fields that the dialects read in objects which limit or report an answer.
_FIELDS_OF = {
    "stream_options": ("include_usage",),
    "options": ("num_predict",),
    "prompt_cache_options": ("prewarm",),
    "response": ("input", "instructions", "max_output_tokens", "max_response_output_tokens", "model", "tools"),
    "session": (
        "audio",
        "input_audio_format",
        "input_audio_transcription",
        "max_output_tokens",
        "max_response_output_tokens",
        "model",
        "output_audio_format",
    ),
    "generationConfig": ("maxOutputTokens", "max_output_tokens", "candidateCount", "candidate_count"),
    "inferenceConfig": ("maxTokens", "max_new_tokens"),
    "textGenerationConfig": ("maxTokenCount",),
    "imageGenerationConfig": ("numberOfImages",),
    "additionalModelRequestFields": ("max_tokens", "max_new_tokens", "max_gen_len", "max_completion_tokens"),
}
_FIELDS_OF["generation_config"] = _FIELDS_OF["generationConfig"]


def _by_fold(names: Iterable[str]) -> dict[str, str]:
    return {name.casefold(): name for name in names}


_KNOWN = _by_fold(_FIELDS)
# What known fields with capitals are in lower case.
_MISSPELT = frozenset(fold for fold, name in _KNOWN.items() if fold != name)
_KNOWN_OF = {name: _by_fold(fields) for name, fields in _FIELDS_OF.items()}


def refuse_ambiguous_names(document: Mapping[str, Any]) -> None:
    """Raise ApiError 400 for names that are equal but for case, and for a known field's name in another case.

    Both are checked in the document and in the objects directly in it; names that are equal but for case also in the
    objects of its lists (such as messages). Deeper, names may be the client's: two properties of a tool's schema may
    differ by case alone.
    """
    shapes: dict[tuple[str, ...], str] = {}  # a conversation has thousands of messages with a few sets of names
    names = tuple(document)
    if not (_is_lower(names) and _MISSPELT.isdisjoint(names)):
        _refuse_unknown_case(document, _KNOWN, "")
        shapes[names] = ""
    for field, value in document.items():
        if type(value) is dict:
            shapes[tuple(value)] = field
            if field in _KNOWN_OF:
                _refuse_unknown_case(value, _KNOWN_OF[field], f"{field}.")
        elif type(value) is list:
            for one in value:
                if type(one) is dict:
                    shapes[tuple(one)] = field
    for names, field in shapes.items():
        if _is_lower(names):
            continue
        folded = set(map(str.casefold, names)) if len(names) < 100 else {name.casefold() for name in names}
        if len(folded) < len(names):
            raise _twice(names, field)


def _is_lower(names: tuple[str, ...]) -> bool:
    """Whether all names are in lower case, as in most requests: then none differ by case alone."""
    text = "".join(names)
    return text.islower() and text.isascii()


def _refuse_unknown_case(holder: Mapping[str, Any], known: Mapping[str, str], within: str) -> None:
    for name in holder:
        field = known.get(name.casefold(), name)
        if field != name:
            raise bad_request(
                f"The request body has a field that is '{field}' but for case: names are case-sensitive.",
                param=within + field,
                code="duplicate_key" if field in holder else "invalid_key",
            )


def _twice(names: tuple[str, ...], field: str) -> ApiError:
    seen: set[str] = set()
    for name in names:
        folded = name.casefold()
        if folded in seen:
            break
        seen.add(folded)
    where = f" in '{field}'" if field else ""
    shown = name[:64] if name.isprintable() else "…"
    message = f"The request body has the key '{shown}' twice{where}, in another case: a provider could use either."
    return bad_request(message, param=shown, code="duplicate_key")

"""In every dialect: a text, in an event and in a whole answer; and the last event of a stream, with its usage."""

from __future__ import annotations

from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.gemini.generate import GEMINI_STREAM
from proxy.metering.dialects.mistral.completions import MISTRAL_FIM
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT, OLLAMA_GENERATE
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.wire.framing import Framing, LineFramer
from tests.metering.fixtures import CHAT_USAGE, COHERE_USAGE, GEMINI_USAGE, INPUT_USAGE

Said = tuple[Dialect, dict[str, Any], dict[str, Any]]
"""a dialect, an event with the text, an answer with it"""


def said(text: str) -> list[Said]:
    """The text in each dialect."""
    content = {"content": text}
    parts = {"content": {"parts": [{"text": text}]}}
    return [
        (OPENAI_CHAT, {"choices": [{"delta": content}]}, {"choices": [{"message": content}]}),
        (MISTRAL_FIM, {"choices": [{"delta": content}]}, {"choices": [{"message": content}]}),
        (OPENAI_COMPLETIONS, {"choices": [{"text": text}]}, {"choices": [{"text": text}]}),
        (OPENAI_RESPONSES, {"type": "response.output_text.delta", "output_index": 0, "delta": text},
         {"status": "completed", "output": [{"type": "message", "content": [{"text": text}]}]}),
        (ANTHROPIC_MESSAGES, {"type": "content_block_delta", "index": 0, "delta": {"text": text}},
         {"type": "message", "content": [{"type": "text", "text": text}]}),
        (GEMINI_STREAM, {"candidates": [parts]}, {"candidates": [parts | {"finishReason": "STOP"}]}),
        (COHERE_CHAT, {"type": "content-delta", "delta": {"message": {"content": {"text": text}}}},
         {"id": "c", "message": {"content": [{"type": "text", "text": text}]}}),
        (OLLAMA_CHAT, {"message": content, "done": False}, {"message": content, "done": True}),
        (OLLAMA_GENERATE, {"response": text, "done": False}, {"response": text, "done": True}),
        (OPENAI_TRANSCRIPTIONS, {"type": "transcript.text.delta", "delta": text}, {"text": text}),
    ]  # fmt: skip


def answers(text: str, prompt: int, completion: int) -> list[tuple[Dialect, dict[str, Any]]]:
    """An answer of each dialect with this text and these counts."""
    openai = {"usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}}
    inputs = {"usage": {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}}
    ollama = {"prompt_eval_count": prompt, "eval_count": completion}
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": completion, "totalTokenCount": prompt + completion}
    used = {
        "openai.chat": openai, "mistral.fim": openai, "openai.completions": openai, "openai.responses": inputs,
        "anthropic.messages": inputs, "gemini.stream": {"usageMetadata": counts},
        "cohere.chat": {"usage": {"tokens": inputs["usage"]}}, "ollama.chat": ollama, "ollama.generate": ollama,
        "openai.transcriptions": inputs | {"duration": 12.5},
    }  # fmt: skip
    return [(dialect, answer | used[dialect.name]) for dialect, _, answer in said(text)]


# (dialect, last event, where its usage is (empty: at the top), the paths of what else the counts need)
LASTS: list[tuple[Dialect, dict[str, Any], str, set[str]]] = [
    (OPENAI_CHAT,
     {"id": "c", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}], "usage": CHAT_USAGE},
     "usage", set()),
    (OPENAI_CHAT, {"choices": [], "usage": None, "x_groq": {"id": "r", "usage": CHAT_USAGE}},
     "x_groq.usage", {"usage"}),
    (OPENAI_COMPLETIONS, {"id": "c", "choices": [{"text": "x", "index": 0}], "usage": CHAT_USAGE}, "usage", set()),
    (OPENAI_RESPONSES,
     {"type": "response.completed", "output_index": 0, "delta": None, "item": None, "error": None,
      "response": {"id": "r", "status": "completed", "output": [{"type": "message", "content": [{"text": "x"}]}],
                   "usage": INPUT_USAGE, "error": None, "incomplete_details": None, "service_tier": "default"}},
     "response.usage", set()),
    (ANTHROPIC_MESSAGES,
     {"type": "message_delta", "index": 0, "delta": {"stop_reason": "end_turn", "text": "x"}, "content_block": None,
      "message": None, "usage": {"input_tokens": 9, "output_tokens": 777}},
     "usage", set()),
    (GEMINI_STREAM,
     {"candidates": [
         {"index": 0, "content": {"parts": [{"text": "x"}]}, "groundingMetadata": {}, "finishReason": "STOP"}],
      "usageMetadata": GEMINI_USAGE, "responseId": "r", "promptFeedback": None, "modelVersion": "m"},
     "usageMetadata", {"candidates", "candidates[]", "candidates[].finishReason"}),
    (COHERE_CHAT,
     {"type": "message-end", "id": "c", "index": 0, "message": None,
      "delta": {"finish_reason": "COMPLETE", "message": None, "error": None, "usage": COHERE_USAGE}},
     "delta.usage", set()),
    (OLLAMA_CHAT,
     {"message": {"content": "x", "thinking": "y", "tool_calls": []}, "done": True, "done_reason": "stop",
      "total_duration": 5, "prompt_eval_count": 9, "eval_count": 777},
     "", {"prompt_eval_count", "eval_count"}),
    (OLLAMA_GENERATE,
     {"response": "x", "context": [1], "done": True, "prompt_eval_count": 9, "eval_count": 777},
     "", {"prompt_eval_count", "eval_count"}),
    (OPENAI_SPEECH, {"type": "speech.audio.done", "usage": INPUT_USAGE}, "usage", set()),
    (OPENAI_TRANSCRIPTIONS, {"type": "transcript.text.done", "text": "x", "usage": INPUT_USAGE}, "usage", set()),
    (OPENAI_IMAGES, {"type": "image_generation.completed", "b64_json": "x", "usage": INPUT_USAGE}, "usage", set()),
]  # fmt: skip


def lasts(filler: str, description: str) -> list[tuple[Dialect, dict[str, Any]]]:
    """The last event of each dialect, with `filler` and some descriptions beside its usage."""
    junk = {"instructions": filler, "tools": [{"description": description}] * 4}
    return [
        (OPENAI_CHAT, {"x": junk, "choices": [{"delta": {}, "finish_reason": "stop"}], "usage": CHAT_USAGE}),
        (OPENAI_COMPLETIONS, {"x": filler, "choices": [{"text": "x", "finish_reason": "stop"}], "usage": CHAT_USAGE}),
        (
            OPENAI_RESPONSES,
            {
                "type": "response.completed",
                "response": {"status": "completed", **junk, "output": [{"result": filler}], "usage": INPUT_USAGE},
            },
        ),
        (
            ANTHROPIC_MESSAGES,
            {"type": "message_delta", "x": junk, "delta": {"stop_reason": "end_turn"}, "usage": INPUT_USAGE},
        ),
        (
            GEMINI_STREAM,
            {
                "candidates": [{"content": {"parts": [{"inlineData": {"data": filler}}]}, "finishReason": "STOP"}],
                "usageMetadata": GEMINI_USAGE,
            },
        ),
        (
            COHERE_CHAT,
            {"type": "message-end", "x": junk, "delta": {"finish_reason": "COMPLETE", "usage": COHERE_USAGE}},
        ),
        (OLLAMA_CHAT, {"x": junk, "done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 777}),
        (OLLAMA_GENERATE, {"context": [123456] * 10_000, "done": True, "prompt_eval_count": 9, "eval_count": 777}),
    ]


def body_of(framing: Framing, documents: list[bytes]) -> bytes:
    if framing.content_type == "application/json" and framing.framer is not LineFramer:
        return b"[" + b",\n".join(documents) + b"]"
    return b"".join(framing.event(document, "") for document in documents)

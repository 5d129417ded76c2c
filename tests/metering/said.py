"""A text in every dialect: in an event of a stream, and in a whole answer."""

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
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES

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

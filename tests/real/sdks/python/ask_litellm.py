"""LiteLLM as a library before the proxy, in OpenAI's language."""

from __future__ import annotations

import os
from typing import Any

import litellm
from report import GATE, MESSAGES, READ_TOKENS, Report, run_all, usage

litellm.suppress_debug_info = True
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": GATE}} for name in ("open_gate", "take_note")
]


def complete(key: str, model: str, **more: Any) -> Any:
    base = f"{os.environ['TOKENWEIR_URL']}/v1"
    return litellm.completion(
        model=f"openai/{model}", messages=MESSAGES, api_base=base, api_key=os.environ[key], max_retries=0, timeout=20,
        **more,
    )  # fmt: skip


def take(told: Report, answer: Any) -> None:
    choice, used = answer.choices[0], answer.usage
    calls = [call.function.arguments for call in choice.message.tool_calls or ()]
    cached = used.prompt_tokens_details and used.prompt_tokens_details.cached_tokens
    told |= {
        "text": choice.message.content or "", "arguments": "".join(calls), "finish": choice.finish_reason,
        "usage": usage(used.prompt_tokens, cached, used.completion_tokens),
    }  # fmt: skip


def streamed(model: str, told: Report, **more: Any) -> None:
    chunks = list(complete("KEY", model, stream=True, stream_options={"include_usage": True}, **more))
    take(told, litellm.stream_chunk_builder(chunks, messages=MESSAGES))


def leave(model: str, told: Report) -> None:
    texts: list[str] = []
    stream = complete("KEY", model, stream=True)
    for chunk in stream:
        texts += [text] if (text := chunk.choices[0].delta.content) else []
        if len(texts) == READ_TOKENS:
            break
    stream.completion_stream.close()
    told["text"] = "".join(texts)


def limited(model: str, told: Report) -> None:
    take(told, complete("KEY_LIMITED", model))
    complete("KEY_LIMITED", model)


def failure(raised: Exception) -> Report:
    return {"status": getattr(raised, "status_code", 0)}


if __name__ == "__main__":
    scenarios = {
        "plain": lambda model, told: take(told, complete("KEY", model)),
        "stream_usage": streamed,
        "tools": lambda model, told: streamed(model, told, tools=TOOLS),
        "leave": leave,
        "broken": streamed,
        "unknown_key": lambda model, told: complete("KEY_UNKNOWN", model),
        "spent": lambda model, told: complete("KEY_SPENT", model),
        "limited": limited,
    }
    run_all(scenarios, failure)

"""Mistral's SDK before the proxy."""

from __future__ import annotations

import json
import os
from typing import Any

from mistralai.client import Mistral
from report import MESSAGES, QUESTION, READ_TOKENS, TOOLS, Report, run_all, usage, with_keys


def client(key: str) -> Mistral:
    return Mistral(api_key=os.environ[key], server_url=os.environ["TOKENWEIR_URL"], timeout_ms=20_000)


CLIENT = client("KEY")


def used(answer: Any) -> dict[str, int]:
    told = answer.usage
    return usage(told.prompt_tokens, told.additional_properties.get("num_cached_tokens"), told.completion_tokens)


def plain(mistral: Mistral, model: str, told: Report) -> None:
    answer = mistral.chat.complete(model=model, messages=MESSAGES)
    choice = answer.choices[0]
    told |= {"text": choice.message.content, "finish": choice.finish_reason, "usage": used(answer)}


def streamed(model: str, told: Report, **more: Any) -> None:
    told |= {"text": "", "arguments": "", "usage": None}
    with CLIENT.chat.stream(model=model, messages=MESSAGES, **more) as stream:
        for event in stream:
            choice = event.data.choices[0]
            told["text"] += choice.delta.content or ""
            told["arguments"] += "".join(call.function.arguments for call in choice.delta.tool_calls or ())
            told["finish"] = choice.finish_reason
            told["usage"] = used(event.data) if event.data.usage else told["usage"]


def leave(model: str, told: Report) -> None:
    texts: list[str] = []
    with CLIENT.chat.stream(model=model, messages=MESSAGES) as stream:
        for event in stream:
            texts.append(event.data.choices[0].delta.content)
            if len(texts) == READ_TOKENS:
                break
    told["text"] = "".join(texts)


def embed(model: str, told: Report) -> None:
    made = CLIENT.embeddings.create(model=model, inputs=[QUESTION])
    told |= {"vector": made.data[0].embedding, "usage": usage(made.usage.prompt_tokens, 0, 0)}


def models(_: str, told: Report) -> None:
    told["models"] = [model.id for model in CLIENT.models.list().data]


def failure(raised: Exception) -> Report:
    status, body = getattr(raised, "status_code", 0), getattr(raised, "body", "{}")
    return {"status": status, "kind": json.loads(body).get("error", {}).get("code")}


if __name__ == "__main__":
    own = {"stream": streamed, "leave": leave, "broken": streamed, "embeddings": embed, "models": models}
    tools = {"tools": lambda model, told: streamed(model, told, tools=TOOLS)}
    run_all(with_keys(client, plain) | own | tools, failure)

"""Ollama's SDK before the proxy."""

from __future__ import annotations

import json
import os
from typing import Any

import ollama
from report import MESSAGES, QUESTION, READ_TOKENS, TOOLS, Report, run_all, usage, with_keys


def client(key: str) -> ollama.Client:
    bearer = {"Authorization": f"Bearer {os.environ[key]}"}
    return ollama.Client(host=os.environ["TOKENWEIR_URL"], headers=bearer, timeout=20)


CLIENT = client("KEY")


def take(told: Report, part: Any) -> None:
    """A whole answer, or a part of it."""
    told["text"] = told.get("text", "") + (part.message.content or "")
    calls = [json.dumps(dict(call.function.arguments)) for call in part.message.tool_calls or ()]
    told["arguments"] = told.get("arguments", "") + "".join(calls)
    if part.done:
        told |= {"finish": part.done_reason, "usage": usage(part.prompt_eval_count, 0, part.eval_count)}


def plain(at: ollama.Client, model: str, told: Report) -> None:
    take(told, at.chat(model=model, messages=MESSAGES))


def streamed(model: str, told: Report, **more: Any) -> None:
    for part in CLIENT.chat(model=model, messages=MESSAGES, stream=True, **more):
        take(told, part)


def leave(model: str, told: Report) -> None:
    texts: list[str] = []
    stream: Any = CLIENT.chat(model=model, messages=MESSAGES, stream=True)
    for part in stream:
        texts.append(part.message.content)
        if len(texts) == READ_TOKENS:
            break
    stream.close()
    told["text"] = "".join(texts)


def embed(model: str, told: Report) -> None:
    made = CLIENT.embed(model=model, input=QUESTION)
    told |= {"vector": list(made.embeddings[0]), "usage": usage(made.prompt_eval_count, 0, 0)}


def models(_: str, told: Report) -> None:
    told["models"] = [model.model for model in CLIENT.list().models]


def failure(raised: Exception) -> Report:
    return {"status": getattr(raised, "status_code", 0), "message": getattr(raised, "error", str(raised))}


if __name__ == "__main__":
    own = {"stream": streamed, "leave": leave, "broken": streamed, "embeddings": embed, "models": models}
    tools = {"tools": lambda model, told: streamed(model, told, tools=TOOLS)}
    run_all(with_keys(client, plain) | own | tools, failure)

"""Cohere's SDK before the proxy."""

from __future__ import annotations

import os
from typing import Any

import cohere
from report import MESSAGES, QUESTION, READ_TOKENS, TOOLS, Report, run_all, usage, with_keys


def client(key: str) -> cohere.ClientV2:
    return cohere.ClientV2(
        api_key=os.environ[key], base_url=os.environ["TOKENWEIR_URL"], timeout=20, max_retries=0,
        log_warning_experimental_features=False,
    )  # fmt: skip


CLIENT = client("KEY")


def used(told: Any) -> dict[str, int]:
    return usage(told.tokens.input_tokens, told.cached_tokens, told.tokens.output_tokens)


def plain(at: cohere.ClientV2, model: str, told: Report) -> None:
    answer = at.chat(model=model, messages=MESSAGES)
    told |= {
        "text": answer.message.content[0].text, "finish": answer.finish_reason, "usage": used(answer.usage)
    }  # fmt: skip


def streamed(model: str, told: Report, **more: Any) -> None:
    told |= {"text": "", "arguments": ""}
    for event in CLIENT.chat_stream(model=model, messages=MESSAGES, **more):
        match event.type:
            case "content-delta":
                told["text"] += event.delta.message.content.text
            case "tool-call-delta":
                told["arguments"] += event.delta.message.tool_calls.function.arguments
            case "message-end":
                told |= {"finish": event.delta.finish_reason, "usage": used(event.delta.usage)}


def leave(model: str, told: Report) -> None:
    texts: list[str] = []
    stream = CLIENT.chat_stream(model=model, messages=MESSAGES)
    for event in stream:
        if event.type == "content-delta":
            texts.append(event.delta.message.content.text)
        if len(texts) == READ_TOKENS:
            break
    stream.close()
    told["text"] = "".join(texts)


def embed(model: str, told: Report) -> None:
    made = CLIENT.embed(model=model, texts=[QUESTION], input_type="search_document", embedding_types=["float"])
    told |= {"vector": made.embeddings.float_[0], "usage": usage(made.meta.billed_units.input_tokens, 0, 0)}


def models(_: str, told: Report) -> None:
    told["models"] = [model.name for model in CLIENT.models.list().models]


def failure(raised: Exception) -> Report:
    body = getattr(raised, "body", None)
    told = body.get("message", "") if isinstance(body, dict) else str(body)
    return {"status": getattr(raised, "status_code", 0), "message": told}


if __name__ == "__main__":
    own = {"stream": streamed, "leave": leave, "broken": streamed, "embeddings": embed, "models": models}
    tools = {"tools": lambda model, told: streamed(model, told, tools=TOOLS)}
    run_all(with_keys(client, plain) | own | tools, failure)

"""Answers of a first provider that another one makes good, and what both cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from proxy.demo.script import Script, Send
from proxy.demo.shapes import DONE
from proxy.demo.shapes import sse as event

B_COST = {"input": 0.17, "cached_input": 0.03, "output": 0.91}
ERROR = {"error": {"message": "overloaded", "type": "server_error", "code": "overloaded"}}
JSON = (("Content-Type", "application/json"),)
# Answers with status 200 in which nothing is: of a stream, and of a plain answer.
FAILED_STREAMS = {
    "error-event": Script(steps=(Send(event(ERROR)), Send(DONE))),
    "named-error": Script(steps=(Send(b"event: error\n" + event(ERROR)),)),
    "empty-stream": Script(steps=()),
    "closed-stream": Script(steps=(), framing="close"),
    "only-done": Script(steps=(Send(DONE),)),
    "no-choices": Script(steps=(Send(event({"id": "1", "choices": []})), Send(DONE))),
    "null-event": Script(steps=(Send(b": wait\n\n"), Send(b"data: null\n\n"), Send(DONE))),
    "html": Script(steps=(Send(b"<html>Bad gateway</html>"),), headers=(("Content-Type", "text/html"),)),
    "json-error": Script(steps=(Send(json.dumps(ERROR).encode()),), headers=JSON),
    "gzip-error": Script(steps=(Send(event(ERROR)),), gzip=True),
}
FAILED_ANSWERS = {
    "plain-error": Script(steps=(Send(json.dumps(ERROR).encode()),), headers=JSON, framing="length"),
    "plain-null": Script(steps=(Send(b"null"),), headers=JSON, framing="length"),
    "plain-empty": Script(steps=(), headers=JSON, framing="length"),
    "plain-nothing": Script(steps=(Send(b'{"choices": []}'),), headers=JSON),
    "plain-html": Script(steps=(Send(b"<html>Bad gateway</html>"),), headers=(("Content-Type", "text/html"),)),
}


def money(entry: Mapping[str, Any], prices: Mapping[str, float]) -> Decimal:
    """What its tokens come to."""
    rates = {name: Decimal(str(price)) for name, price in prices.items()}
    tokens = entry["prompt_tokens"] * rates["input"] + entry["completion_tokens"] * rates["output"]
    return tokens.scaleb(-6)

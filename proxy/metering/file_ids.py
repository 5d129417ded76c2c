"""The files that a request names by their ids at the provider.

Invariant: every reference is found that a provider resolves: the parts of OpenAI's chats and responses, their tools,
and the sources of Anthropic's messages. Text that a model wrote (the input of a tool call) names no file.
"""

from __future__ import annotations

from typing import Any

# A part of one of these types has its file in `file_id`; OpenAI's chat has it in the member `file`.
_PARTS = frozenset({"input_file", "input_image", "file", "container_upload", "computer_screenshot"})
# Members with a file, of any type: the mask of an image tool.
_HOLDERS = frozenset({"input_image_mask"})
# Written by a model, after definitions that are the client's own.
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})

# Bytes that are searched in one call, which holds the interpreter.
_STEP_BYTES = 128 * 1024


def may_name_files(body: bytes) -> bool:
    """Whether a member of this JSON document may be called `file_id` or `file_ids`, also by escapes."""
    if len(body) > _STEP_BYTES:
        return any(may_name_files(body[at : at + _STEP_BYTES]) for at in range(0, len(body), _STEP_BYTES - 6))
    # Each search takes half a microsecond a KB: most bodies need two.
    return b"file_id" in body or (b"\\u00" in body and (b"\\u006" in body or b"\\u005" in body))


def file_ids(document: dict[str, Any]) -> set[str]:
    """The ids of all named files."""
    file_ids: set[str] = set()
    waiting: list[tuple[object, bool]] = [(document, False)]
    while waiting:
        value, holds = waiting.pop()
        if isinstance(value, list):
            waiting += [(one, False) for one in value]
        elif isinstance(value, dict):
            _read(value, file_ids, holds=holds)
            is_call = _type(value) in _CALLS
            waiting += [
                (inner, name in _HOLDERS)
                for name, inner in value.items()
                if isinstance(inner, dict | list) and not (is_call and name == "input")
            ]
    return file_ids


def _type(part: dict[str, Any]) -> str:
    kind = part.get("type")  # of a tool's parameters, any schema
    return kind if isinstance(kind, str) else ""


def _read(part: dict[str, Any], file_ids: set[str], *, holds: bool) -> None:
    if holds or _type(part) in _PARTS:
        inner = part.get("file")
        for one in (part, inner) if isinstance(inner, dict) else (part,):
            if isinstance(file_id := one.get("file_id"), str):
                file_ids.add(file_id)
    if isinstance(several := part.get("file_ids"), list):
        file_ids.update(one for one in several if isinstance(one, str))

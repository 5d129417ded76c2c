"""Providers' SDKs, loaded when a test first uses one: their import takes seconds, and each worker imports all tests."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _Late(ModuleType):
    """A module that is imported when its first attribute is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest and its plugins look for such names in every object of a module of tests
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import anthropic
    import openai
    from google import genai
else:
    anthropic, openai, genai = _Late("anthropic"), _Late("openai"), _Late("google.genai")

__all__ = ["anthropic", "genai", "openai"]

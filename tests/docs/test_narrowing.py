"""The recipes of the page on narrowed keys, as they are written: each makes the key that the command makes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from proxy.keys.narrowing import narrowable, narrowed_text, parse
from tests.docs.lines import BLOCK, ROOT

PAGE = ROOT / "docs" / "how-to" / "narrow-a-key.md"
KEY = narrowable("key_0123456789abcdef0123", b"d" * 32, b"p" * 32)
CAVEATS = ("name=Zoë", "models=a,b", "usd=5", "end_user=?>~", "run=1")
NARROWED = narrowed_text(KEY, CAVEATS)


def recipe(language: str) -> str:
    (found,) = (text for named, text in BLOCK.findall(PAGE.read_text()) if named == language)
    return str(found)


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


def printed(*command: str, folder: Path) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120).stdout.strip()


def test_python() -> None:
    names: dict[str, Any] = {}
    exec(recipe("python"), names)
    assert names["narrow"](KEY, *CAVEATS) == NARROWED
    assert names["narrow"](names["narrow"](KEY, *CAVEATS[:2]), *CAVEATS[2:]) == NARROWED, "step by step"
    found = parse(NARROWED)
    assert found is not None
    assert [one.decode() for one in found.caveats] == list(CAVEATS)


@pytest.mark.external
def test_node(tmp_path: Path) -> None:
    call = f"console.log(narrow(...{json.dumps([KEY, *CAVEATS])}));"
    (tmp_path / "narrow.mjs").write_text(f"{recipe('js')}\n{call}\n")
    assert printed(program("node"), "narrow.mjs", folder=tmp_path) == NARROWED


@pytest.mark.external
def test_go(tmp_path: Path) -> None:
    texts = ", ".join(json.dumps(one, ensure_ascii=False) for one in (KEY, *CAVEATS))
    source = recipe("go").replace("package narrowing", "package main").replace("import (", 'import ("fmt"; ')
    (tmp_path / "main.go").write_text(f"{source}\nfunc main() {{ fmt.Println(Narrow({texts})) }}\n")
    assert printed(program("go"), "run", "main.go", folder=tmp_path) == NARROWED

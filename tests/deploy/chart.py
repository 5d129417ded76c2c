"""Helm's templates, rendered: by helm where it is at hand, and by the few words of its language that ours are made of.

Law: a word that is not known here is an error, so that a template that grows beyond them is not taken for checked.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "tokenweir"
RELEASE = "tw"
_ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}(\s*)", re.DOTALL)


def by_helm(values: dict[str, Any]) -> str:
    """What `helm template` makes."""
    done = subprocess.run(
        ["helm", "template", RELEASE, str(CHART), "--values", "-"],
        input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_python(values: dict[str, Any]) -> str:
    """The same, for templates as simple as ours. Raises LookupError for a value that is not in values.yaml."""
    known = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    top = {
        "Values": known,
        "Chart": {"AppVersion": yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]},
        "Release": {"Name": RELEASE, "Service": "Helm"},
    }
    template = Template(top)
    template.render((CHART / "templates" / "_helpers.tpl").read_text())
    return "\n---\n".join(template.render(file.read_text()) for file in sorted((CHART / "templates").glob("*.yaml")))


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(below[name], value) if isinstance(value, dict) and isinstance(below.get(name), dict) else value
        for name, value in above.items()
    }
    return {**below, **both}


RENDERERS = [by_python, *([by_helm] if shutil.which("helm") else [])]


class Template:
    """`define`, `if`, `include`, a path, and what it is piped through."""

    def __init__(self, top: dict[str, Any]) -> None:
        self._top = top
        self._defined: dict[str, str] = {}

    def render(self, text: str) -> str:
        """The text, with each action done."""
        made, at = "", 0
        while (found := _ACTION.search(text, at)) is not None:
            made += text[at : found.start()] + ("" if found[2] else found[1])
            word, _, rest = found[3].partition(" ")
            after = found.end() if found[4] else found.start(5)
            if word in ("define", "if"):
                body, after = self._body(text, after)
                if word == "define":
                    self._defined[json.loads(rest)] = body
                elif self._value(rest):
                    made += self.render(body)
            else:
                made += str(self._value(found[3]))
            at = after
        return made + text[at:]

    def _body(self, text: str, start: int) -> tuple[str, int]:
        """What stands before the `end` that belongs to this beginning, and where it goes on behind it."""
        depth, at = 1, start
        while depth:
            found = _ACTION.search(text, at)
            assert found is not None, "an action without its end"
            word = found[3].split()[0]
            depth += (word in ("define", "if")) - (word == "end")
            at = found.end() if found[4] else found.start(5)
        return text[start : found.start() if found[2] else found.start(2) - 2], at

    def _value(self, pipeline: str) -> Any:
        first, *functions = pipeline.split(" | ")
        value = self._first(first)
        for function in functions:
            name, _, argument = function.partition(" ")
            value = _FUNCTIONS[name](value, argument)
        return value

    def _first(self, words: str) -> Any:
        if words.startswith("include "):
            return self.render(self._defined[json.loads(words.split()[1])])
        if words.startswith(".Files.Get "):
            return (CHART / json.loads(words.split()[1])).read_text()
        if words.startswith("toYaml "):
            return yaml.safe_dump(self._path(words.removeprefix("toYaml ")), width=10_000).rstrip("\n")
        return self._path(words)

    def _path(self, words: str) -> Any:
        value: Any = self._top
        for name in words.removeprefix(".").split("."):
            value = value[name]
        return value


def _nindent(value: str, argument: str) -> str:
    return "\n" + "\n".join(" " * int(argument) + line for line in str(value).split("\n"))


_FUNCTIONS = {
    "nindent": _nindent,
    "quote": lambda value, _: json.dumps(str(value)),
    "sha256sum": lambda value, _: hashlib.sha256(str(value).encode()).hexdigest(),
}

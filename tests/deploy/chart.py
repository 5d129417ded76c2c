"""Helm's templates, rendered by helm; and the schema of the chart's values.

python -m tests.deploy.chart      writes the configuration's part of the schema, after a setting has come or gone
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from proxy.settings.schema import schema
from tests.deploy.edges import program

Manifests = dict[tuple[str, str], dict[str, Any]]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "tokenweir"
VALUES_SCHEMA = CHART / "values.schema.json"
RELEASE = "tw"
# The oldest that the chart takes; a helm that Go built takes none newer than 1.20 for granted.
KUBERNETES = "1.27.0"
# The chart is for machines that share a queue and a ledger.
_REQUIRED = ["queue", "ledger", "key_pepper", "providers", "models"]
_PREFIX = "config"


def helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm; skips the test where there is none. Debian has none: .ci/run builds it with Go."""
    return subprocess.run(
        [program("helm"), *arguments, "--values", "-"],
        input=yaml.safe_dump(values or {}), capture_output=True, text=True, check=False,
    )  # fmt: skip


def template(values: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """`helm template` with these values."""
    return helm("template", RELEASE, str(CHART), "--kube-version", KUBERNETES, *options, values=values)


def rendered(values: dict[str, Any]) -> str:
    """The manifests that `helm template` makes of these values."""
    done = template(values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(values: dict[str, Any]) -> Manifests:
    """What the chart makes of these values, by kind and name; each is there once."""
    made = [one for one in yaml.safe_load_all(_rendered(json.dumps(values))) if one]
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in made}
    assert len(by_kind) == len(made)
    return by_kind


@cache
def _rendered(values: str) -> str:
    return rendered(json.loads(values))


def pods(made: Manifests) -> Iterator[tuple[str, dict[str, Any]]]:
    """The component and the specification of every pod."""
    for one in made.values():
        spec = one.get("spec", {})
        template = spec.get("jobTemplate", {"spec": spec})["spec"].get("template")
        if template is not None:
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def definitions() -> dict[str, Any]:
    """The JSON Schema of the configuration, without descriptions. Each section is a definition: many occur again."""
    names: dict[str, str] = {}

    def reduced(node: Any, path: str) -> Any:
        if isinstance(node, list):
            return [reduced(one, path) for one in node]
        if not isinstance(node, dict):
            return node
        made = {word: reduced(one, path) for word, one in node.items() if word not in ("description", "properties")}
        if "properties" in node:
            made["properties"] = {name: reduced(one, f"{path}.{name}") for name, one in node["properties"].items()}
            name = names.setdefault(json.dumps({**made, "type": ["object", "null"]}), path)
            return {"$ref": f"#/definitions/{name}"}
        return _or_null(made)

    whole = schema()
    reduced({word: whole[word] for word in ("type", "properties", "additionalProperties")}, _PREFIX)
    made = {name: json.loads(text) for text, name in names.items()}
    made[_PREFIX]["required"] = _REQUIRED
    return dict(sorted(made.items()))


def _or_null(node: dict[str, Any]) -> dict[str, Any]:
    """Without `anyOf` where `type` can say that a value may be null: helm's messages are shorter."""
    match node:
        case {"anyOf": [{"$ref": _} as section, {"type": "null"}]}:
            return section
        case {"anyOf": [{"type": str(kind)} as one, {"type": "null"}]}:
            return {**one, "type": [kind, "null"]}
    return node


def written(text: str) -> str:
    """The schema's text with today's definitions, one a line."""
    before, found, _ = text.partition(f'    "{_PREFIX}": {{"type"')
    assert found
    lines = [f"    {json.dumps(name)}: {json.dumps(one)}" for name, one in definitions().items()]
    return before + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    VALUES_SCHEMA.write_text(written(VALUES_SCHEMA.read_text()))

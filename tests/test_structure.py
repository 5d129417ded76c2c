"""Rules of the code and of the project around it that no linter has."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

import proxy
from proxy.cli import _parser

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "proxy").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def parsed(paths: list[Path], where: str) -> Iterator[tuple[Path, ast.Module]]:
    """Those of the files that have a match of `where`. To parse all of them takes seconds."""
    for path in paths:
        text = path.read_text("utf-8")
        if re.search(where, text, re.MULTILINE):
            yield path, ast.parse(text, str(path))


def tracked() -> list[Path]:
    """Every file of the project: git's list where there is a repository, else what is not ignored by name."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else []
    paths = [ROOT / name for name in names] if names else [p for p in ROOT.rglob("*") if not _is_made(p)]
    return [path for path in paths if path.is_file()]


def _is_made(path: Path) -> bool:
    """True if a tool has made the file: an environment, bytecode or a cache."""
    return any(part.startswith(".venv") or part.endswith(("__pycache__", "_cache")) for part in path.parts)


def annotated(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Name, type and line of every annotated variable, field and parameter, and of every property."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target).rpartition(".")[2], ast.unparse(node.annotation), node.lineno
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, ast.unparse(node.annotation), node.lineno
        elif isinstance(node, ast.FunctionDef) and node.returns is not None and node.decorator_list:
            yield node.name, ast.unparse(node.returns), node.lineno


def test_a_name_with_usd_is_dollars_and_one_with_nusd_nano_dollars() -> None:
    """An integer in a name of dollars is off by 10^9; a `Nusd` says so in its name."""
    wrong = {
        f"{path.relative_to(ROOT)}:{line}: {name}: {type_}"
        for path, tree in parsed(FILES, r"usd\s*:|usd\(|Nusd")
        for name, type_, line in annotated(tree)
        if (re.search(r"(^|_)usd$", name) and re.search(r"\b(int|Nusd)\b", type_) and "Decimal" not in type_)
        or (re.fullmatch(r"Nusd( \| (None|msgspec\.UnsetType|UnsetType))*", type_) and "nusd" not in name)
    }
    assert wrong == set()


def test_importing_a_module_runs_nothing() -> None:
    """No call for its effect at the top of a module; `if __name__ == "__main__"` is not an import."""
    calls = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in parsed(FILES, r"""^[\w.()[\]"']+\(""")
        for node in tree.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    }
    assert calls == set()


# An assignment to attributes of `self` at the beginning of a line, alone, among others, or with a type.
_TARGET = r"(?:self\.)?\w+"
_ASSIGNED = re.compile(rf"^ {{8,}}((?:{_TARGET}(?:, {_TARGET})* = )+|self\.\w+: )", re.MULTILINE)
_CLASS = re.compile(r"^class (\w+)(?:\(([^:]*)\))?:\n((?:[ #].*\n|\n)*)", re.MULTILINE)


def assigned(code: str) -> set[str]:
    """The attributes of `self` to which these methods assign."""
    return {name for targets in _ASSIGNED.findall(code) for name in re.findall(r"self\.(\w+)", targets)}


def test_every_attribute_is_declared_where_its_object_is_made() -> None:
    """In the body of the class or of a base, in `__init__`, or in a method that `__init__` calls. What is set first by
    a later method does not exist before, and no type says so."""
    declared: dict[str, set[str]] = {}
    assigned_later: dict[tuple[str, str], set[str]] = {}
    bases_of: dict[str, set[str]] = {}
    for path in FILES:
        for name, bases, body in _CLASS.findall(path.read_text("utf-8")):
            parts = re.split(r"^    (?:async )?def (\w+)", body, flags=re.MULTILINE)
            methods = list(zip(parts[1::2], parts[2::2], strict=True))
            made = "".join(code for method, code in methods if method in ("__init__", "__post_init__"))
            made += "".join(code for method, code in methods if f"self.{method}(" in made)
            declared.setdefault(name, set()).update(
                assigned(made), re.findall(r"^    (\w+)(?:: | = )", body, re.MULTILINE)
            )
            bases_of.setdefault(name, set()).update(re.findall(r"\w+", bases))
            assigned_later[str(path.relative_to(ROOT)), name] = assigned(body)

    def known(name: str) -> set[str]:
        return declared.get(name, set()).union(*map(known, bases_of.get(name, ())))

    found = {(*place, one) for place, names in assigned_later.items() for one in names - known(place[1])}
    of_aiohttp = (("ClientConnection", "_close"), ("ClientRequest", "_message"))
    assert found == {("proxy/http/connection.py", *one) for one in of_aiohttp}


def imported(path: Path) -> Iterator[str]:
    """Every module of tests that a file imports, or imports from, and every name below it."""
    text = path.read_text("utf-8")
    yield from re.findall(r"^\s*import (tests[\w.]*)", text, re.MULTILINE)
    for module, names in re.findall(r"^\s*from (tests[\w.]*) import (\([^)]*\)|.*)", text, re.MULTILINE):
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def test_no_module_of_tests_imports_from_another() -> None:
    """What several tests need stands in a module that is no test: a fixture imported twice starts its server twice."""
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in TESTS
        for name in imported(path)
        if re.fullmatch(r"tests\.(?:\w+\.)*(?:conftest|test_\w+)", name)
        and (ROOT / f"{name.replace('.', '/')}.py").exists()
    }
    assert found == set()


# To import one takes tenths of a second to seconds, in each worker, whatever tests it then runs.
SDKS = {
    "anthropic",
    "boto3",
    "botocore",
    "google",
    "jsonschema",
    "kubernetes_validate",
    "mistral_common",
    "openai",
    "playwright",
    "schemathesis",
    "tokenizers",
}


def test_no_module_of_tests_loads_an_sdk_when_it_is_imported() -> None:
    """Those of tests/real are programs of their own."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in parsed(TESTS, rf"^(import|from)\b.*\b({'|'.join(SDKS)})\b")
        if path.parent.name != "python"
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
        if name.partition(".")[0] in SDKS
    }
    assert found == set()


# -- the project around it ---------------------------------------------------------------------------------------


def pyproject() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def distribution(requirement: str) -> str:
    """The bare, normalised name of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[@]", requirement.strip(), maxsplit=1)[0]).lower()


# Version → the first digits of the SHA-256 of its section in the changelog, which does not change after its release.
RELEASED = {"0.1.0": "f615e03929bd1f37"}


def changelog() -> dict[str, str]:
    """Version → section, newest first."""
    parts = re.split(r"^## (.+)\n", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


def test_there_is_one_version() -> None:
    chart = ROOT / "deploy" / "helm" / "tokenweir"
    told = re.findall(r"^(?:version|appVersion): (.+)$", (chart / "Chart.yaml").read_text("utf-8"), re.MULTILINE)
    told += re.findall(r"^  tag: (.+)$", (chart / "values.yaml").read_text("utf-8"), re.MULTILINE)
    found = [pyproject()["project"]["version"], next(iter(changelog())), *(one.strip('"') for one in told)]
    assert found == [proxy.__version__] * 5


def test_the_changelog_of_a_release_does_not_change() -> None:
    """A new line belongs to the first section."""
    sections = changelog()
    assert {name: sha256(sections[name].encode()).hexdigest()[:16] for name in RELEASED} == RELEASED
    assert proxy.__version__ not in RELEASED


def pinned() -> dict[str, str]:
    """requirements/dev.txt: distribution → version."""
    lines = (ROOT / "requirements" / "dev.txt").read_text("utf-8").splitlines()
    pins = [line.split(";")[0].strip(" \\").split("==") for line in lines if re.match(r"[A-Za-z0-9]", line)]
    assert all(len(pin) == 2 for pin in pins), "every line pins one version"
    return {distribution(name): version for name, version in pins}


def test_every_dependency_is_pinned() -> None:
    project, groups = pyproject()["project"], pyproject()["dependency-groups"]
    wanted = [*project["dependencies"], *groups["dev"], *groups["build"]]  # type: ignore[misc]
    assert {distribution(one) for one in wanted} <= set(pinned())


@pytest.mark.parametrize("lock", ["build", "dev", "runtime"])
def test_what_is_pinned_is_checked_by_its_hash_and_comes_from_nowhere_in_particular(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8")
    assert "://" not in text
    assert not re.search(
        r"^\s*(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host|-e)\b", text, re.MULTILINE
    )
    blocks = [block for block in re.split(r"\n(?=[A-Za-z0-9])", text) if re.match(r"[A-Za-z0-9]", block)]
    assert blocks
    assert all("--hash=sha256:" in block for block in blocks)


# Where packages come from is for each machine to say: hosts of indexes and registries are not ours to name.
# Written in parts, so that this file does not name them either.
HOSTS = tuple(
    ".".join(parts).encode()
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs"),
        ("registry", "yarnpkg"),
        ("npmmirror", "com"),
        ("proxy", "golang"),
        ("jfrog", "io"),
        ("fury", "io"),
    )
)


@pytest.mark.process
def test_no_file_names_a_registry_or_a_machine() -> None:
    places = (str(ROOT).encode(), str(Path.home()).encode() + b"/")
    found = {str(path.relative_to(ROOT)): path.read_bytes() for path in tracked()}
    assert len(found) > len(FILES)
    assert [name for name, content in found.items() if any(word in content for word in (*HOSTS, *places))] == []


def commands() -> list[str]:
    """Every command of the command line, in full."""
    found: list[str] = []

    def descend(words: str, parser: object) -> None:
        inner = [one for one in parser._actions if hasattr(one.choices, "items")]  # type: ignore[attr-defined]
        for action in inner:
            for word, below in action.choices.items():
                descend(f"{words} {word}", below)
        if not inner:
            found.append(words)

    descend("tokenweir", _parser())
    return found


def test_the_commands_are_the_ones_that_were_promised() -> None:
    assert set(commands()) == {
        "tokenweir demo",
        "tokenweir serve",
        "tokenweir reload",
        "tokenweir init",
        "tokenweir exchange",
        "tokenweir import",
        "tokenweir config check",
        "tokenweir config show",
        "tokenweir config schema",
        "tokenweir migrate",
        "tokenweir periods close",
        "tokenweir periods list",
        "tokenweir receipt",
        "tokenweir verify",
        "tokenweir keys create",
        "tokenweir keys update",
        "tokenweir keys rotate",
        "tokenweir keys block",
        "tokenweir keys unblock",
        "tokenweir keys narrow",
        "tokenweir keys info",
        "tokenweir keys list",
        "tokenweir keys revoke",
        "tokenweir keys pepper",
        "tokenweir accounts create-organization",
        "tokenweir accounts create-project",
        "tokenweir accounts update",
        "tokenweir accounts block",
        "tokenweir accounts unblock",
        "tokenweir accounts info",
        "tokenweir accounts list",
        "tokenweir limits create",
        "tokenweir limits update",
        "tokenweir limits delete",
        "tokenweir limits list",
        "tokenweir credit add",
        "tokenweir grants add",
        "tokenweir grants list",
        "tokenweir grants revoke",
        "tokenweir budgets show",
        "tokenweir budgets rebuild",
        "tokenweir worker",
        "tokenweir ledger",
        "tokenweir adjust",
        "tokenweir rerate",
        "tokenweir simulate",
        "tokenweir prices show",
        "tokenweir prices refresh",
        "tokenweir prices why",
        "tokenweir prices diff",
        "tokenweir prices update",
        "tokenweir dead-letters list",
        "tokenweir dead-letters retry",
        "tokenweir dead-letters drop",
        "tokenweir reconcile",
        "tokenweir conformance",
        "tokenweir doctor",
        "tokenweir backup",
        "tokenweir archive",
        "tokenweir journal replay",
        "tokenweir audit",
        "tokenweir statement",
        "tokenweir export",
        "tokenweir erase",
        "tokenweir usage",
        "tokenweir sinks status",
        "tokenweir sinks retry",
        "tokenweir completion",
    }

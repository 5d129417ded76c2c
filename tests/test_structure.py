"""The code's own rules, kept by a machine: small files, small functions, honest names, one place for each thing."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

import proxy
from proxy.cli import _parser

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "proxy").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
FUNCTION_LINES_MEDIAN = 10
# Names that say nothing of what they name.
EMPTY_NAMES = frozenset({"data", "info", "manager", "process", "handle"})
# What is printed is a command's answer; everything else is logged.
PRINTERS = ("proxy/cli/", "proxy/demo/")
# Where tasks are made: each of these holds them until they end.
TASK_HOLDERS = frozenset({"proxy/foundation/tasks.py"})
BARE_TASKS = frozenset({"create_task", "ensure_future"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree(name: str) -> ast.Module:
    """The module, parsed."""
    return ast.parse((ROOT / name).read_text("utf-8"), name)


def functions(name: str) -> Iterator[Function]:
    """Every function of a module, nested ones too."""
    return (node for node in ast.walk(tree(name)) if isinstance(node, Function))


def lines_of(function: Function) -> int:
    """Its length, from `def` to its last line; its docstring is not counted: a promise may be long."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def tracked() -> list[Path]:
    """Every file of the project: git's list where there is a repository, else what is not ignored by name."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else []
    paths = [ROOT / name for name in names] if names else [p for p in ROOT.rglob("*") if ".venv" not in p.parts]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_can_be_read_at_a_sitting(name: str) -> None:
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("name", NAMES)
def test_no_function_is_longer_than_a_screen(name: str) -> None:
    long = {one.name: lines_of(one) for one in functions(name) if lines_of(one) > FUNCTION_LINES_MAX}
    assert long == {}


def test_most_functions_are_small() -> None:
    lengths = [lines_of(function) for name in NAMES for function in functions(name)]
    assert len(lengths) > 300
    assert median(lengths) <= FUNCTION_LINES_MEDIAN


@pytest.mark.parametrize("name", NAMES)
def test_a_module_begins_with_its_law(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "the first lines say what the file promises"


def assigned(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Every bare name that is given a value, as a variable or an argument, and its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, Function | ast.Lambda):
            arguments = node.args
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield one.arg, one.lineno


def overriding(module: ast.Module) -> set[int]:
    """Lines of the arguments whose names a protocol of the library prescribes."""
    prescribed = {"data_received", "eof_received", "connection_made", "connection_lost", "write_eof"}
    return {
        argument.lineno
        for node in ast.walk(module)
        if isinstance(node, Function) and node.name in prescribed
        for argument in node.args.args
    }


@pytest.mark.parametrize("name", NAMES)
def test_names_say_what_they_name(name: str) -> None:
    module = tree(name)
    empty = [f"{word} (line {at})" for word, at in assigned(module) if word in EMPTY_NAMES]
    allowed = overriding(module)
    assert [one for one in empty if int(one.split("line ")[1][:-1]) not in allowed] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_for_later(name: str) -> None:
    assert re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", (ROOT / name).read_text("utf-8")) == []


@pytest.mark.parametrize("name", NAMES)
def test_only_commands_print(name: str) -> None:
    calls = (node.func for node in ast.walk(tree(name)) if isinstance(node, ast.Call))
    prints = [call.lineno for call in calls if isinstance(call, ast.Name) and call.id == "print"]
    assert not prints or name.startswith(PRINTERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_has_a_holder(name: str) -> None:
    """`asyncio.create_task` is forgotten by everybody; a loop's is allowed where its result is kept."""
    bare = [
        node.lineno
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in BARE_TASKS
    ]
    assert bare == [], "a task that nobody holds"
    called = [
        node.lineno
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Attribute)
        and node.attr in BARE_TASKS
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncio"
    ]
    assert not called or name in TASK_HOLDERS


@pytest.mark.parametrize("name", NAMES)
def test_importing_a_module_runs_nothing(name: str) -> None:
    """No call for its effect at the top of a module; `if __name__ == "__main__"` is not an import."""
    loose = [node.lineno for node in tree(name).body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    assert loose == []


# -- the project around it ---------------------------------------------------------------------------------------


def pyproject() -> dict[str, dict[str, object]]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def distribution(requirement: str) -> str:
    """The bare, normalised name of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[@]", requirement.strip(), maxsplit=1)[0]).lower()


def test_there_is_one_version() -> None:
    assert pyproject()["project"]["version"] == proxy.__version__


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
        "tokenweir migrate",
        "tokenweir keys create",
        "tokenweir keys update",
        "tokenweir keys rotate",
        "tokenweir keys block",
        "tokenweir keys unblock",
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
        "tokenweir credit add",
        "tokenweir budgets show",
        "tokenweir budgets rebuild",
        "tokenweir worker",
        "tokenweir ledger",
        "tokenweir adjust",
        "tokenweir rerate",
        "tokenweir dead-letters list",
        "tokenweir dead-letters retry",
        "tokenweir dead-letters drop",
        "tokenweir reconcile",
        "tokenweir doctor",
        "tokenweir backup",
        "tokenweir audit",
        "tokenweir statement",
        "tokenweir export",
        "tokenweir sinks status",
        "tokenweir sinks retry",
    }


def test_the_reference_names_every_command() -> None:
    text = re.sub(r"[`|\s]+", " ", (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8"))
    assert [one for one in commands() if one not in text] == []

"""What the code uses of other packages: each is declared, and private parts of aiohttp are listed one by one."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("proxy", "migrations") for path in (ROOT / folder).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """The distributions that the package needs, with those of its extras."""
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    return {normalised(re.match(r"[\w.-]+", line)[0]) for line in lines}  # type: ignore[index]


def imported(text: str) -> Iterator[str]:
    """Every module that a file imports, also those that it imports late. By its lines: to parse all files takes
    seconds."""
    for module, names in re.findall(r"^ *(?:from ([\w.]+) import\b|import ([\w., ]+)$)", text, re.MULTILINE):
        yield from [module] if module else (name.split()[0] for name in names.split(","))


def test_every_imported_package_is_declared() -> None:
    """A dependency of a dependency may be gone after an update."""
    distributions, known = packages_distributions(), declared()
    undeclared = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in FILES
        for module in imported(path.read_text("utf-8"))
        if (top := module.partition(".")[0]) not in sys.stdlib_module_names | {"proxy"}
        and known.isdisjoint(map(normalised, distributions.get(top, [top])))
    }
    assert undeclared == set()


def test_aiohttp_is_bounded_by_the_next_minor_version() -> None:
    """Its private parts change without a notice. Whoever raises the bound reads the table below."""
    (line,) = (line for line in PROJECT["dependencies"] if line.startswith("aiohttp>="))
    least, bound = re.fullmatch(r"aiohttp>=([\d.]+),<([\d.]+)", line).groups()  # type: ignore[union-attr]
    major, minor = map(int, least.split(".")[:2])
    assert bound == f"{major}.{minor + 1}"


PRIVATE: dict[str, dict[Any, set[str]]] = {
    "proxy/conformance/client.py": {aiohttp.client: {"_RequestContextManager"}},
    "proxy/gateway/websocket/dial.py": {BaseProtocol: {"_upgraded"}},
    "proxy/http/connection.py": {
        RequestHandler: {
            "_close", "_loop", "_messages", "_paused", "_payload_parser", "_request_count", "_waiter",
        },
        BaseProtocol: {"_buffer_paused", "_pause_transport_reading", "_reading_paused", "_resume_transport_reading"},
        aiohttp.web_protocol: {"_ErrInfo"},
        web.BaseRequest: {"_message"},
        web.Response: {"_req"},
        web.Server: {"_kwargs", "_loop"},
    },
    "proxy/http/websocket_frames.py": {aiohttp._websocket.helpers: {"websocket_mask"}},
}  # fmt: skip
"""file → class or module of aiohttp → its private parts that the file uses"""


def private_names(path: Path) -> set[str]:
    """The private parts of aiohttp that a file uses: what it imports from private modules, attributes of other objects
    that begin with an underscore, and attributes that its classes inherit from aiohttp's."""
    text = path.read_text("utf-8")
    if "aiohttp" not in text:
        return set()
    tree = ast.parse(text)
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiohttp"):
            is_private = "._" in (node.module or "")
            names |= {name.name for name in node.names if is_private or name.name.startswith("_")}
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and ast.unparse(node.value) not in OWN:
            names.add(node.attr)
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= inherited(node, getattr(module, node.name))
    return names


OWN = {"self", "cls"}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_replace"


def inherited(node: ast.ClassDef, cls: type) -> set[str]:
    """The private names in the body of a class that one of its bases in aiohttp has."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("aiohttp")]
    used = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and ast.unparse(one.value) in OWN}
    used |= {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in used if _is_private(name) and any(has(base, name) for base in bases)}


def has(owner: type | ModuleType, name: str) -> bool:
    """Whether a class or module of aiohttp has this part; also an attribute that only its methods set."""
    if hasattr(owner, name):
        return True
    try:
        source = inspect.getsource(owner) if inspect.isclass(owner) else ""
    except OSError:  # compiled: all its attributes are the class's
        return False
    return re.search(rf"\bself\.{name}\b", source) is not None


def test_the_private_parts_of_aiohttp_are_listed() -> None:
    found = {str(path.relative_to(ROOT)): names for path in FILES if (names := private_names(path))}
    assert found == {file: set().union(*parts.values()) for file, parts in PRIVATE.items()}


@pytest.mark.parametrize(
    ("file", "owner", "name"),
    [
        (file, owner, name)
        for file, parts in PRIVATE.items()
        for owner, names in parts.items()
        for name in sorted(names)
    ],
)
def test_aiohttp_still_has(file: str, owner: Any, name: str) -> None:
    assert has(owner, name), f"aiohttp {aiohttp.__version__}: {owner.__name__} has no {name}, which {file} uses"

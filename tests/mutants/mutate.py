"""Makes small faults in the code, to see whether the tests of the gate find them.

A mutant is one module with one changed expression or statement. Which mutants are chosen depends on the seed, the
function and its code alone: a change elsewhere leaves the choice as it is.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEED = 2026


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault in one module."""

    module: str
    """path from the root of the project"""
    function: str
    """qualified name within the module"""
    change: str
    """the code before and after, for people"""
    line: int
    source: str
    """the whole module with the fault"""

    @property
    def name(self) -> str:
        """Names the mutant, whatever line it is in: `proxy/billing/money.py usd_text: a < b -> a <= b`."""
        return f"{self.module} {self.function}: {self.change}"


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
CALLS = {"max": "min", "min": "max", "any": "all", "all": "any"}
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# Assertions and messages are not behaviour; within an f-string, Python 3.11 has no place of a node.
_LEFT_OUT = (ast.Assert, ast.Raise, ast.arguments, ast.AnnAssign, ast.JoinedStr)


def mutants(root: Path, module: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    text = (root / module).read_text("utf-8")
    tree = ast.parse(text)
    for function, body in _functions(tree, ""):
        seen: dict[str, int] = {}
        for node, replacement in _changes(body):
            before, after = ast.unparse(node), ast.unparse(replacement)
            change = f"{_short(before)} -> {_short(after)}"
            seen[change] = seen.get(change, 0) + 1
            if seen[change] > 1:
                change += f" ({seen[change]})"
            line = getattr(node, "lineno", body.lineno)
            yield Mutant(module, function, change, line, _replaced(text, node, after))


def chosen(root: Path, modules: list[str], count: int) -> list[Mutant]:
    """The `count` mutants of these modules that come first by the hash of their names."""
    every = [mutant for module in modules for mutant in mutants(root, module)]
    return sorted(every, key=lambda mutant: hashlib.sha256(f"{SEED} {mutant.name}".encode()).digest())[:count]


def _functions(node: ast.AST, within: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.")


def _changes(function: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Pairs of a node and its replacement."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, _LEFT_OUT) or (isinstance(function, _FUNCTION) and child not in function.body):
            continue
        yield from _of(child)
        yield from _changes(child)


def _of(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield node, _with(node, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield node, _with(node, op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=ast.And()):
            yield node, _with(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield node, _with(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, operand
        case ast.IfExp(test=test):
            yield node, _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield node, ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield node, _with(node, func=ast.Name(CALLS[name]))
        case ast.If(test=test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield node, ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _replaced(text: str, node: ast.AST, after: str) -> str:
    """The text with the node replaced, by its place in the text; all else stays as it is."""
    lines = text.splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head = lines[first].encode()[: node.col_offset].decode()  # type: ignore[attr-defined]
    tail = lines[last].encode()[node.end_col_offset :].decode()  # type: ignore[attr-defined]
    part = after if isinstance(node, ast.stmt) else f"({after})"
    return "".join((*lines[:first], head, part, tail, *lines[last + 1 :]))


def _short(code: str) -> str:
    return " ".join(code.split())[:70]

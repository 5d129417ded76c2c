"""The size of proxy/ and tests/ beside that of the last release: `python -m tests.support.growth`.

`--release VERSION COMMIT` writes the sizes of today as those of that release.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
FOLDERS = ("proxy", "tests")
OF_RELEASE = Path(__file__).with_name("size_of_release.json")


class Size(msgspec.Struct, frozen=True):
    """The size of a folder's Python files. A class that inherits from `Protocol` directly is a protocol."""

    files: int
    lines: int
    classes: int
    protocols: int


class Release(msgspec.Struct, frozen=True):
    """Sizes of folders by name, at a commit."""

    version: str
    commit: str
    sizes: dict[str, Size]


def size_of(folder: Path) -> Size:
    """Blank lines and comments are counted."""
    texts = [path.read_text("utf-8") for path in sorted(folder.rglob("*.py"))]
    classes = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return Size(
        files=len(texts),
        lines=sum(text.count("\n") for text in texts),
        classes=len(classes),
        protocols=sum(any(_is_protocol(base) for base in one.bases) for one in classes),
    )


def _is_protocol(base: ast.expr) -> bool:
    name = base.value if isinstance(base, ast.Subscript) else base
    return isinstance(name, ast.Name) and name.id == "Protocol"


def compared(now: Size, before: Size) -> str:
    """`70,100 lines (-753), …`"""
    pairs = ((name, getattr(now, name), getattr(before, name)) for name in Size.__struct_fields__)
    return ", ".join(f"{count:,} {name} ({count - earlier:+,})" for name, count, earlier in pairs)


def main(arguments: Sequence[str]) -> None:
    """Print, or write the file."""
    sizes = {name: size_of(ROOT / name) for name in FOLDERS}
    if arguments[:1] == ["--release"]:
        version, commit = arguments[1:]
        OF_RELEASE.write_bytes(msgspec.json.format(msgspec.json.encode(Release(version, commit, sizes))) + b"\n")
    release = msgspec.json.decode(OF_RELEASE.read_bytes(), type=Release)
    for name, size in sizes.items():
        print(f"{name}/: {compared(size, release.sizes[name])} since {release.version}")


if __name__ == "__main__":
    main(sys.argv[1:])

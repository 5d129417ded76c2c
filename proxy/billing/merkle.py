"""Merkle trees: one digest commits to a list, and a short path proves that a line is in it.

Invariants: the tree of RFC 6962 §2.1 over SHA-256. A leaf and a node are hashed with different prefixes, so that
neither can pass for the other. Memory is a digest for each level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256


class InvalidPath(ValueError):  # noqa: N818  the caller's data is wrong, not the program
    """A path that cannot belong to a tree of the stated size."""


def leaf_hash(content: bytes) -> bytes:
    """The digest of a line, 32 bytes."""
    return sha256(b"\0" + content).digest()


class MerkleTree:
    """Grows by leaves; keeps the roots of its complete subtrees only."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        """`leaves`: results of `leaf_hash`."""
        self.size = 0
        self._roots: list[bytes] = []
        for one in leaves:
            self.add(one)

    def add(self, leaf: bytes) -> None:
        size, root = self.size, leaf
        while size & 1:
            root = _node(self._roots.pop(), root)
            size >>= 1
        self._roots.append(root)
        self.size += 1

    @property
    def root(self) -> bytes:
        """The digest of all leaves, 32 bytes; of none, that of nothing."""
        if not self._roots:
            return sha256().digest()
        root = self._roots[-1]
        for left in reversed(self._roots[:-1]):
            root = _node(left, root)
        return root


def path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The sibling digests on the path from leaf `index` to the root, from the bottom up."""
    if len(leaves) == 1:
        return []
    split = _split(len(leaves))
    if index < split:
        return [*path(leaves[:split], index), MerkleTree(leaves[split:]).root]
    return [*path(leaves[split:], index - split), MerkleTree(leaves[:split]).root]


def root_by(leaf: bytes, index: int, size: int, beside: Sequence[bytes]) -> bytes:
    """The root that a leaf and its `path` lead to. Raises InvalidPath."""
    if not 0 <= index < size:
        raise InvalidPath(f"index: {index} is not in a tree of {size}")
    if size == 1:
        if beside:
            raise InvalidPath("path: is too long")
        return leaf
    if not beside:
        raise InvalidPath("path: is too short")
    split = _split(size)
    if index < split:
        return _node(root_by(leaf, index, split, beside[:-1]), beside[-1])
    return _node(beside[-1], root_by(leaf, index - split, size - split, beside[:-1]))


def _split(size: int) -> int:
    """The largest power of two below `size`: the leaves of the left subtree."""
    return 1 << (size - 1).bit_length() - 1


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()

"""A real server that speaks three languages: `llama-server`, built once from a source distribution, and a tiny model.

Law: built by whom asks for it (`python -m tests.real.llama`: many minutes of CPU, needs cmake, ninja and a C++
compiler), kept in the cache folder, and nowhere else; where it is absent, its tests skip. The model is made here, of
random numbers from a fixed seed: it says words without sense, and its server counts them as any other.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.real.cached import CACHE

SOURCE = "llama-cpp-python"
# As few features as it can be built with, and unoptimised: a model this small needs no speed, a build does.
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O1", "-DCMAKE_CXX_FLAGS=-O0", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_NATIVE=OFF", "-DGGML_OPENMP=OFF", "-DGGML_LLAMAFILE=OFF",
    "-DLLAMA_ALL_WARNINGS=OFF",
)  # fmt: skip

SERVER = CACHE / "llama" / "llama-server"
"""once it is built"""
WIDTH, HEADS, CONTEXT, WORDS = 64, 2, 4096, 300
_BYTE, _UNKNOWN, _CONTROL, _NORMAL = 6, 2, 3, 1
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_ALIGNMENT = 32
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def server() -> Path:
    """The server; skips the test where it is not built."""
    if not SERVER.exists():
        pytest.skip(
            "llama-server is not built on this machine: `python -m tests.real.llama` builds it, in many minutes"
        )
    return SERVER


def build() -> None:
    """Fetch the source distribution, build the server, and put it where `server` finds it."""
    with TemporaryDirectory(prefix="tokenweir-llama-") as folder:
        here = Path(folder)
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", SOURCE, "--dest", folder, SOURCE]
        subprocess.run(fetch, check=True)
        with tarfile.open(next(here.glob("*.tar.gz"))) as packed:
            packed.extractall(here, filter="data")
        source = next(here.glob("*/vendor/llama.cpp"))
        subprocess.run(["cmake", "-G", "Ninja", "-S", str(source), "-B", str(here / "built"), *OPTIONS], check=True)
        subprocess.run(["nice", "-n", "19", "ninja", "-C", str(here / "built"), "llama-server"], check=True)
        SERVER.parent.mkdir(parents=True, exist_ok=True)
        beside = SERVER.with_suffix(".new")
        shutil.copy2(here / "built" / "bin" / "llama-server", beside)
        beside.replace(SERVER)


def tokens() -> Iterator[tuple[str, int]]:
    """The vocabulary, and of what type each is: three of control, every byte, and words."""
    yield from (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL))
    yield from ((f"<0x{byte:02X}>", _BYTE) for byte in range(256))
    rng = Random("words")
    yield from (("▁" + "".join(rng.choices("aeilmnorstuw", k=5)), _NORMAL) for _ in range(WORDS))


def model() -> bytes:
    """A GGUF file, version 3: one layer. Words are likely, bytes and the end are not: an answer ends at its limit."""
    vocabulary = list(tokens())
    squares = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    layer = {f"blk.0.{name}.weight": (WIDTH, WIDTH) for name in squares}
    norms = dict.fromkeys(("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"), (WIDTH,))
    ends = {"token_embd.weight": (WIDTH, len(vocabulary)), "output.weight": (WIDTH, len(vocabulary))}
    shapes: dict[str, tuple[int, ...]] = ends | layer | norms
    told = list(_facts(vocabulary))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(told)) + b"".join(told)
    body = bytearray()
    for name, shape in shapes.items():
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(body))
        body += _padded(_numbers(name, shape, len(vocabulary)))
    return _padded(head) + bytes(body)


def _numbers(name: str, shape: tuple[int, ...], vocabulary: int) -> bytes:
    if len(shape) == 1:
        return struct.pack(f"<{WIDTH}f", *[1.0] * WIDTH)
    rng = Random(name)
    rows = shape[1]
    silent = vocabulary - WORDS if name == "output.weight" else 0
    numbers = [0.0] * (silent * WIDTH) + [rng.gauss(0, 0.5) for _ in range((rows - silent) * WIDTH)]
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _facts(vocabulary: list[tuple[str, int]]) -> Iterator[bytes]:
    texts: dict[str, str] = {
        "general.architecture": "llama", "general.name": "weir", "tokenizer.ggml.model": "llama",
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    counts = {
        "context_length": CONTEXT, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": WIDTH,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": len(vocabulary),
    }  # fmt: skip
    ids = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    numbers = {f"llama.{name}": count for name, count in counts.items()}
    numbers |= {f"tokenizer.ggml.{name}": token for name, token in ids.items()}
    yield from (_fact(name, _STRING, _string(text)) for name, text in texts.items())
    yield from (_fact(name, _U32, struct.pack("<I", number)) for name, number in numbers.items())
    yield _fact("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5))
    yield _list("tokens", _STRING, [_string(word) for word, _ in vocabulary])
    yield _list("scores", _F32, [struct.pack("<f", -float(at)) for at in range(len(vocabulary))])
    yield _list("token_type", _I32, [struct.pack("<i", kind) for _, kind in vocabulary])


def _list(name: str, kind: int, items: list[bytes]) -> bytes:
    return _fact(f"tokenizer.ggml.{name}", _ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def _fact(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % _ALIGNMENT)


def arguments(port: int, weights: Path) -> list[Any]:
    """How the server is started: alone on this machine, one answer at a time from nothing remembered."""
    return [
        server(), "--model", weights, "--host", "127.0.0.1", "--port", port, "--ctx-size", CONTEXT, "--threads", 1,
        "--parallel", 1, "--no-webui", "--jinja",
    ]  # fmt: skip


if __name__ == "__main__":
    build()

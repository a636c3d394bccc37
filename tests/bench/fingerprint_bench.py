"""Fingerprint speed against plain reading with one running XXH3 (what ``xxhsum`` does).

Run: python tests/bench/fingerprint_bench.py [--gib 2] [--dir DIR]. Exits 1 below 80 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from detdiag.fingerprint.weights import hash_weights

LIMIT = 0.8


def write_checkpoint(path: Path, size: int, tensors: int) -> None:
    """A safetensors file of ``size`` bytes in ``tensors`` equal tensors of random bytes."""
    each = size // tensors
    header = {
        f"model.layers.{i}.weight": {
            "dtype": "U8",
            "shape": [each],
            "data_offsets": [i * each, (i + 1) * each],
        }
        for i in range(tensors)
    }
    raw = json.dumps(header).encode()
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        left = each * tensors
        while left:
            file.write(block[: min(left, len(block))])
            left -= min(left, len(block))


def plain(path: Path) -> None:
    """One pass, one hash, the chunk size of the reader under test."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            state.update(buffer[:size])


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = Path(folder) / "model.safetensors"
        write_checkpoint(path, int(options.gib * (1 << 30)), 200)
        plain(path)  # into the page cache: this compares hashing and reading, not the disk
        rows = [
            (seconds(lambda: plain(path)), seconds(lambda: hash_weights(path)))
            for _ in range(options.rounds)
        ]
        size = path.stat().st_size
    base, ours = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = base / ours
    print(f"plain {size / base / 1e9:.2f} GB/s, fingerprint {size / ours / 1e9:.2f} GB/s")
    print(f"speed {100 * ratio:.0f} % of plain reading (limit {100 * LIMIT:.0f} %)")
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

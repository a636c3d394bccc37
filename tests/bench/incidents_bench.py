"""How fast the miner reads, against orjson alone, pandas and DuckDB, and how much memory it takes.

Run: python tests/bench/incidents_bench.py [--records N] [--memory-records N] [--keep DIR]

Prints one line a reader: wall seconds, the ratio to orjson decoding every line of the same file,
and processor seconds (on a busy machine they say more than the wall). Then the peak resident
memory of the whole command, all its processes together, on the larger log.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson

WORDS = [f"word{i:04d}" for i in range(4000)]


def write_log(path: Path, records: int, seed: int = 0) -> None:
    """About 1.4 kB a record: request and response, five repeats a prompt, 2 % of the prompts
    answered in other words by one replica."""
    rng = random.Random(seed)
    prompts = max(2, records // 5)
    questions = [" ".join(rng.choices(WORDS, k=45)) for _ in range(min(prompts, 40_000))]
    with open(path, "wb") as file:
        for index in range(records):
            file.write(orjson.dumps(record(index, rng.randrange(prompts), questions, rng)) + b"\n")


def record(index: int, prompt: int, questions: list[str], rng: random.Random) -> dict[str, object]:
    replica = rng.choice(("east", "west"))
    question = f"{prompt} {questions[prompt % len(questions)]}"
    answer = " ".join(reversed(question.split()))
    if replica == "west" and prompt % 50 == 0:
        answer += " or so"
    return {
        "id": f"call-{index}",
        "timestamp": f"2025-05-{1 + index % 28:02d}T12:{index % 60:02d}:{index * 7 % 60:02d}.123Z",
        "latency_ms": 900 + index % 500,
        "replica": replica,
        "request": {
            "model": "desk-7b",
            "messages": [
                {"role": "system", "content": "You are the booking desk of a small hotel."},
                {"role": "user", "content": question},
            ],
            "temperature": 0,
            "top_p": 1.0,
            "max_tokens": 256,
            "user": f"guest-{index % 1000}",
        },
        "response": {
            "id": f"chatcmpl-{index:016x}",
            "object": "chat.completion",
            "created": 1_746_000_000 + index,
            "model": "desk-7b",
            "system_fingerprint": f"fp_{replica}",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": answer, "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 90,
                "completion_tokens": 70,
                "total_tokens": 160,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        },
    }


def with_orjson(path: Path) -> int:
    count = 0
    with open(path, "rb") as file:
        for line in file:
            orjson.loads(line)
            count += 1
    return count


def with_miner(path: Path) -> int:
    from detdiag.incidents.analyse import mine

    return mine([path]).records


def with_pandas(path: Path) -> int:
    import pandas as pd

    return len(pd.read_json(path, lines=True))


def with_duckdb(path: Path) -> int:
    """The same question in SQL: requests without ``user`` that got several answers."""
    import duckdb

    query = """
        select count(*) from (
            select request.messages, request.temperature, count(*) as n,
                   count(distinct response.choices[1].message.content) as answers
            from read_json(?, format = 'newline_delimited') group by all
        )
    """
    return int(duckdb.sql(query, params=[str(path)]).fetchall()[0][0])


def timed(read: Callable[[Path], int], path: Path, repeats: int) -> tuple[float, float]:
    """Best wall seconds and best processor seconds of ``repeats``: the machine may be shared."""
    walls, cpus = [], []
    for _ in range(repeats):
        start_s, start_cpu_s = time.perf_counter(), cpu_s()
        read(path)
        walls.append(time.perf_counter() - start_s)
        cpus.append(cpu_s() - start_cpu_s)
    return min(walls), min(cpus)


def cpu_s() -> float:
    """Processor seconds of this process and of its finished children."""
    both = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


MEMORY = """
import json, sys, threading, time
from pathlib import Path

def resident(pid):
    total = 0
    for part in (Path(f"/proc/{pid}"),):
        for line in (part / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
        for task in (part / "task").iterdir():
            for child in (task / "children").read_text().split():
                total += resident(child)
    return total

peak = 0
done = False

def watch():
    global peak
    while not done:
        try:
            peak = max(peak, resident("self"))
        except OSError:
            pass
        time.sleep(0.05)

thread = threading.Thread(target=watch, daemon=True)
from detdiag.incidents.analyse import mine
thread.start()
start = time.perf_counter()
report = mine([Path(sys.argv[1])])
done = True
print(json.dumps({"mib": peak / 1024, "seconds": time.perf_counter() - start,
                  "records": report.records, "found": report.found}))
"""


def memory(path: Path) -> dict[str, float]:
    """Peak proportional set size over the command's process tree (Linux only)."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--memory-records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the logs (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        path = folder / f"log-{arguments.records}.jsonl"
        if not path.exists():
            write_log(path, arguments.records)
        print(f"{arguments.records:,} records, {path.stat().st_size / 1e6:.0f} MB")
        base, cpu = timed(with_orjson, path, arguments.repeats)
        print(f"orjson alone       {base:7.2f} s   1.00  {cpu:7.2f} s cpu")
        for name, read in (
            ("detdiag incidents", with_miner),
            ("DuckDB", with_duckdb),
            ("pandas.read_json", with_pandas),
        ):
            took, cpu = timed(read, path, 1 if read is with_pandas else arguments.repeats)
            print(f"{name:18} {took:7.2f} s  {took / base:5.2f}  {cpu:7.2f} s cpu")
        if arguments.memory_records:
            path = folder / f"log-{arguments.memory_records}.jsonl"
            if not path.exists():
                write_log(path, arguments.memory_records)
            found = memory(path)
            print(
                f"{arguments.memory_records:,} records, {path.stat().st_size / 1e6:.0f} MB: peak "
                f"{found['mib']:.0f} MiB over all processes, {found['seconds']:.1f} s, "
                f"{found['found']:,} incidents"
            )


if __name__ == "__main__":
    main()

"""A corpus of two gigabytes of agent sessions: time to the first request, and memory of every process.

    python -m benchmarks.agents.corpus [--gigabytes 2] [--agents 4]

The sessions have the AgentX form: a line each, about a hundred calls of prompts that grow to 150,000 tokens in blocks
of 64, and two sub-agents. The corpus repeats four of them under other ids. `bakeoff run` measures a truth server.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bakeoff.harness.truth import Schedule, truth_process
from benchmarks.bars import Bars

BLOCK_TOKENS = 64
DURATION_S = 20


def calls(rng: random.Random, start_s: float, count: int, tokens: int, first_id: int) -> list[dict[str, Any]]:
    """One agent's calls, each of which adds to the previous prompt."""
    entries: list[dict[str, Any]] = []
    t_s = start_s
    for _ in range(count):
        ids = list(range(first_id, first_id + tokens // BLOCK_TOKENS))
        answer_s, output = rng.uniform(1, 20), rng.randint(50, 900)
        entries.append(
            {"t": round(t_s, 3), "type": "n", "model": "m", "in": len(ids) * BLOCK_TOKENS, "out": output,
             "hash_ids": ids, "api_time": round(answer_s, 3)}
        )  # fmt: skip
        tokens += output + rng.randint(200, 2_000)
        t_s += answer_s + rng.uniform(1, 20)
    return entries


def session(name: str, rng: random.Random) -> dict[str, Any]:
    """A main agent, and two sub-agents that work while it waits."""
    entries = calls(rng, 0.0, 90, 15_000, 0)
    for number, at in enumerate((30, 60)):
        start_s = entries[at]["t"] + entries[at]["api_time"] + 0.5
        inner = calls(rng, start_s, 8, 8_000, 1_000_000 * (number + 1))
        end_s = inner[-1]["t"] + inner[-1]["api_time"]
        for later in entries[at + 1 :]:
            if "requests" not in later:
                later["t"] = round(later["t"] + end_s - start_s + 1.0, 3)
        group = {
            "t": start_s, "type": "subagent", "agent_id": f"agent_{number:03}", "subagent_type": "Explore",
            "duration_ms": round(1000 * (end_s - start_s)), "total_tokens": None, "tool_use_count": None,
            "status": "completed", "models": ["m"], "requests": inner,
        }  # fmt: skip
        entries.insert(at + 1, group)
    return {"id": name, "models": ["m"], "block_size": BLOCK_TOKENS, "hash_id_scope": "local", "requests": entries}


def write_corpus(path: Path, size_bytes: int) -> int:
    """Write a corpus of at least this size; returns its number of sessions."""
    lines = [json.dumps(session("NAME", random.Random(number)), separators=(",", ":")) for number in range(4)]
    written = count = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size_bytes:
            written += file.write(lines[count % 4].replace('"NAME"', f'"session-{count:06}"', 1) + "\n")
            count += 1
    return count


def processes(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:
        return
    for child in children:
        yield from processes(int(child))


def peak_mb(pid: int) -> float:
    """Peak memory of a process so far; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6 if "VmHWM:" in status else 0.0


def watched(folder: Path, url: str, agents: int) -> tuple[float | None, dict[int, float]]:
    """Measure with the corpus in ``folder``; returns seconds to the first answer, and peak memory of each process."""
    (folder / "corpus.toml").write_text(
        f"""
name = "corpus"
repeats = 1
model = {{ name = "truth", tokenizer = "approximate" }}
workload = {{ name = "trace", options = {{ path = "{folder}/traces.jsonl", max_pause_s = 2 }} }}
[[engines]]
adapter = "openai"
url = "{url}"
[[loads]]
concurrency = {agents}
[trial]
ramp_s = 3
duration_s = {DURATION_S}
max_window_s = {DURATION_S}
timeout_s = 60
""",
        encoding="utf-8",
    )
    argv = [sys.executable, "-m", "bakeoff", "run", str(folder / "corpus.toml"), "--out", str(folder / "runs")]
    started, first_s = time.monotonic(), None
    peaks_mb: dict[int, float] = {}
    with (folder / "log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as run:
        while run.poll() is None:
            for pid in processes(run.pid):
                peaks_mb[pid] = max(peaks_mb.get(pid, 0.0), peak_mb(pid))
            answered = any(path.stat().st_size for path in (folder / "runs").glob("*/trials/*/streams-*"))
            if first_s is None and answered:
                first_s = time.monotonic() - started
            time.sleep(0.2)
    print((folder / "log").read_text(encoding="utf-8")[:600])
    return first_s, peaks_mb


async def measure(folder: Path, agents: int) -> tuple[float | None, dict[int, float]]:
    """The same against a truth server of its own."""
    async with truth_process(Schedule(ttft_s=0.1, itl_s=0.002)) as truth:
        return await asyncio.to_thread(watched, folder, truth.url, agents)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--agents", type=int, default=4, help="sessions in progress")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = write_corpus(folder / "traces.jsonl", round(options.gigabytes * 1e9))
        size_mb = (folder / "traces.jsonl").stat().st_size / 1e6
        print(f"{count} sessions, {size_mb:.0f} MB")
        first_s, peaks_mb = asyncio.run(measure(folder, options.agents))
    bars = Bars()
    bars.add("corpus_mb", size_mb, ">=", 1000 * options.gigabytes)
    bars.add("first_answer_s", first_s or 1e9, "<=", 60)
    bars.add("peak_of_the_largest_process_mb", max(peaks_mb.values()), "<=", 500)
    bars.finish()


if __name__ == "__main__":
    main()

"""Each mistake gives one clear line and a non-zero exit."""

import argparse
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.bars import Bars, model_argument

BAKEOFF = Path(sys.executable).with_name("bakeoff")
EXPERIMENT = """
name = "mistake"
repeats = 1
{extra}
[model]
path = "{model}"
[[engines]]
adapter = "{adapter}"
{engine}
[workload]
name = "random"
options = {{ input_tokens = {tokens}, output_tokens = 4 }}
[[loads]]
concurrency = 1
[trial]
duration_s = 1
min_requests = 2
max_requests = 4
"""
GOOD = {"extra": "", "adapter": "reference", "engine": "", "tokens": 32}


def run(folder: Path, out: Path | None = None, **changes: object) -> subprocess.CompletedProcess[str]:
    file = folder / "mistake.toml"
    file.write_text(EXPERIMENT.format(**{**GOOD, **changes}), encoding="utf-8")
    argv = [BAKEOFF, "run", file, "--out", out or folder / "runs"]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def error_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of error messages, without progress lines."""
    return [line for line in done.stderr.splitlines() if line.startswith(("bakeoff:", "  |", "Traceback"))]


def mistakes(folder: Path, model: str) -> dict[str, tuple[subprocess.CompletedProcess[str], str]]:
    """Run every mistake; returns its process and the words that its error line must contain."""
    torn = folder / "torn.gguf"
    torn.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little") + b"\x20")
    with_tokenizer = f'"\ntokenizer = "{model}'
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port_in_use = run(folder, model=model, engine=f"port = {listener.getsockname()[1]}")
    unwritable = folder / "a-file"
    unwritable.write_text("", encoding="utf-8")
    return {
        "unknown_engine": (run(folder, model=model, adapter="referense"), "did you mean 'reference'"),
        "unknown_key": (run(folder, model=model, extra="repeets = 3"), "did you mean 'repeats'"),
        "missing_model": (run(folder, model="/no/such/model"), "does not exist"),
        "port_in_use": (port_in_use, "choose another"),
        "unwritable_results": (run(folder, unwritable / "runs", model=model), "cannot make the folder"),
        "truncated_gguf": (run(folder, model=f"{torn}{with_tokenizer}"), "cut short"),
        "prompt_too_long": (run(folder, model=model, tokens=300, engine="spec = { max_model_len = 256 }"), "256"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    model_argument(parser)
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        for mistake, (done, words) in mistakes(Path(name), options.model).items():
            lines = error_lines(done)
            print(f"{mistake}: exit {done.returncode}\n    {chr(10).join(lines) or done.stderr}")
            is_clear = done.returncode != 0 and len(lines) == 1 and words in lines[0] and "Traceback" not in done.stderr
            bars.add(f"{mistake}_one_clear_line", is_clear, "==", 1)
    bars.finish()


if __name__ == "__main__":
    main()

"""Each command that gives a verdict in environments that are broken: its documented exit code, in real processes.

The verdicts of the sound environment are known from how the runs were built. A broken environment changes none of them,
except that output which cannot be written and an import that fails are 3, and signals are 130 and 143: 0, 1 and the 2
of a verdict are verdicts alone. Nothing prints a traceback. (Exhausted memory is left out: OpenBLAS may wait for ever.)
"""

import argparse
import asyncio
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from bakeoff.harness.cli.exits import EXIT_INVALID, exit_codes
from bakeoff.harness.truth import Schedule, truth_process
from benchmarks.bars import Bars
from tests.results.builders import FAST, LOADS, Sheet, build_run

ROOT = Path(__file__).resolve().parents[3]
SAME = Sheet(engines={"main": FAST, "branch": FAST}, loads=LOADS[2:3], repeats=6, requests=16, invalid=(), regret=None)
SLOWER = replace(FAST, ttft_s=FAST.ttft_s * 1.2, itl_s=FAST.itl_s * 1.2)
EXPERIMENT = """
name = "e"
repeats = {repeats}
model = {{ name = "truth", tokenizer = "approximate" }}
workload = {{ name = "random", options = {{ input_tokens = 8, output_tokens = 8 }} }}
loads = [{{ concurrency = 1 }}, {{ concurrency = 4 }}]
trial = {{ ramp_s = 0.1, duration_s = 1.0, warm_up_s = 0.0, min_requests = 4, max_foreign_share = 1.0 }}
client = {{ calibrate = false, max_error_share = 1000.0 }}
quality = {{ samples = 0 }}
"""
ENGINE = """
[[engines]]
label = "{name}"
adapter = "openai"
url = "{url}"
"""
SIGNAL_AFTER_S = (0.2, 0.4, 0.6, 1.0)  # before, the interpreter starts, and answers itself
MEASURING = {"run", "bench", "search", "gate by measuring"}


@dataclass(frozen=True)
class Environment:
    """What a command meets.

    Attributes:
        shell: text around ``COMMAND``.
        variables: environment variables; FOLDER stands for the scratch folder.
        codes: exit codes that it may have, given that of a sound environment.
    """

    shell: str = "COMMAND"
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    codes: Callable[[int], set[int]] = lambda sound: {sound}


def failed(_: int) -> set[int]:
    return {3}


def may_fail(sound: int) -> set[int]:
    return {sound, 3} if sound else {0, 2, 3}  # without a verdict of 2, a file that cannot be read is a mistake


ENVIRONMENTS = {
    "a reader that never reads": Environment("set -o pipefail; COMMAND | true"),
    "a reader that leaves": Environment("set -o pipefail; COMMAND | head -1"),
    "stdout closed": Environment("COMMAND >&-"),
    "stderr closed": Environment("COMMAND 2>&-"),
    "every stream closed": Environment("COMMAND <&- >&- 2>&-"),
    "stdout full": Environment("COMMAND > /dev/full", codes=failed),
    "stderr full": Environment("COMMAND 2> /dev/full"),
    "the reader of stderr leaves": Environment("set -o pipefail; COMMAND 2>&1 >FOLDER/out | true"),
    "an ASCII terminal": Environment(variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}),
    "a terminal of one column": Environment(variables={"COLUMNS": "1", "TERM": "dumb"}),
    "an import that fails": Environment(variables={"PYTHONPATH": "FOLDER/broken:ROOT"}, codes=failed),
    "home and cache are files": Environment(
        variables=dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"), "FOLDER/file")
    ),
    "no temporary folder": Environment(variables={"TMPDIR": "FOLDER/none"}),
    "optimised bytecode": Environment(variables={"PYTHONOPTIMIZE": "2"}),
    "warnings are errors": Environment(variables={"PYTHONWARNINGS": "error"}, codes=may_fail),
    "signals ignored": Environment("trap '' INT HUP PIPE; COMMAND"),
    "files of no size": Environment("ulimit -f 0; COMMAND", codes=may_fail),
    "twelve descriptors": Environment("ulimit -n 12; COMMAND", codes=may_fail),
}


def commands(folder: Path, urls: list[str]) -> dict[str, tuple[str, int]]:
    """Arguments and exit code of each command in a sound environment."""
    same = build_run(folder / "same", SAME)
    worse = build_run(folder / "worse", replace(SAME, engines={"main": FAST, "branch": SLOWER}))
    few = build_run(folder / "few", replace(SAME, repeats=2))
    void = build_run(folder / "void", replace(SAME, invalid=tuple(range(12))))
    for night in range(20):
        speed = FAST if night < 10 else SLOWER
        sheet = replace(SAME, engines={"main": speed}, repeats=3, run_id=f"night-{night:02}", seed=night)
        build_run(folder / "nights", replace(sheet, created_utc=f"2026-10-{night + 1:02}T10:00:00+00:00"))
    one, two = (ENGINE.format(name=name, url=url) for name, url in zip("ab", urls, strict=True))
    (folder / "run.toml").write_text(EXPERIMENT.format(repeats=1) + one)
    (folder / "gate.toml").write_text(EXPERIMENT.format(repeats=3) + one + two)

    def gate(path: Path) -> str:
        return f"gate --baseline {path}@main --candidate {path}@branch"

    out = f"--out {folder / 'runs'}"
    server = (
        f"--url {urls[0]} --model m --tokenizer approximate --workload random --ramp 0.1 --duration 1 --concurrency 1"
    )
    return {
        "gate 0": (gate(same), 0),
        "gate 1": (f"{gate(worse)} --junit {folder / 'verdict.xml'}", 1),
        "gate 2": (f"{gate(few)} --band 0.0001", 2),
        "gate 3": (gate(void), 3),
        "gate with a mistake": (f"{gate(same)} --primary ttft", 3),
        "history 1": (f"history {folder / 'nights'} --metric itl_p50_s", 1),
        "history 2": (f"history {folder / 'nights'} --metric itl_p50_s --newest 4", 2),
        "claims report": (f"claims report --out {folder / 'claims'}", 2),
        "compare": (f"compare {worse}@main {worse}@branch", 0),
        "compare without evidence": (f"compare {void}@main {void}@branch", 3),
        "report": (f"report {same}", 0),
        "run": (f"run {folder / 'run.toml'} {out}", 0),
        "bench": (f"bench {server} --no-calibrate {out}", 0),
        "search": (f"search {folder / 'run.toml'} --slo 'ttft_p50<1s' --trials 2 {out}", 0),
        "gate by measuring": (
            f"gate --experiment {folder / 'gate.toml'} --baseline a --candidate b {out} --detect 90%",
            0,
        ),
    }


def measured(
    folder: Path, name: str, arguments: str, environment: Environment, allowed: set[int]
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; of a measurement that another process may have spoilt, of the second one."""
    found = run(folder, arguments, environment)
    if name in MEASURING and found[0] == EXIT_INVALID and EXIT_INVALID not in allowed:
        return run(folder, arguments, environment)
    return found


def run(folder: Path, arguments: str, environment: Environment) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""

    def filled(text: str) -> str:
        command = f"{sys.executable} -m bakeoff {arguments}"
        return text.replace("COMMAND", command).replace("FOLDER", str(folder)).replace("ROOT", str(ROOT))

    variables = {name: filled(value) for name, value in environment.variables.items()}
    done = subprocess.run(
        ["bash", "-c", filled(environment.shell)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=180,
    )
    return done.returncode, done.stdout, done.stderr


def signalled(arguments: str, number: int, after_s: float) -> tuple[int, str, str]:
    """Exit code, as a shell states it, and the output of a command that gets a signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bakeoff", *shlex.split(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    code = process.returncode
    return (128 - code if code < 0 else code), output, ""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="commands whose name has this text")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let jobs in the background ignore it
    tried, wrong, tracebacks = 0, 0, 0

    def judge(command: str, met: str, allowed: set[int], found: tuple[int, str, str]) -> None:
        nonlocal tried, wrong, tracebacks
        code, output = found[0], found[1] + found[2]
        tried, wrong, tracebacks = tried + 1, wrong + (code not in allowed), tracebacks + ("Traceback" in output)
        if code not in allowed or "Traceback" in output:
            print(f"{command}, {met}: exit {code}, not {allowed}\n    {output[-600:]}", flush=True)

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bakeoff-")))
        servers = [await stack.enter_async_context(truth_process(Schedule(0.01, 0.002))) for _ in range(2)]
        (folder / "file").touch()
        (folder / "broken").mkdir()
        (folder / "broken" / "numpy.py").write_text("raise OSError('libopenblas.so: cannot open shared object file')")
        for name, (arguments, sound) in commands(folder, [server.url for server in servers]).items():
            if options.only not in name:
                continue
            assert sound in exit_codes(" ".join(arguments.split()[:2]))
            found = await asyncio.to_thread(measured, folder, name, arguments, Environment(), {sound})
            judge(name, "a sound environment", {sound}, found)
            printed = found[1]
            for met, environment in ENVIRONMENTS.items():
                is_silent = met == "stdout full" and not printed
                allowed = {sound} if is_silent else environment.codes(sound)
                found = await asyncio.to_thread(measured, folder, name, arguments, environment, allowed)
                judge(name, met, allowed, found)
            for number, codes in ((signal.SIGINT, {130}), (signal.SIGTERM, {130, 143})):
                for after_s in SIGNAL_AFTER_S:
                    found = await asyncio.to_thread(signalled, arguments, number, after_s)
                    judge(name, f"{number.name} after {after_s} s", {sound, *codes}, found)
            print(f"{name}: {tried} processes so far, {wrong} wrong", flush=True)
    bars = Bars()
    bars.add("processes", tried, ">=", 1)
    bars.add("wrong_exit_codes", wrong, "==", 0)
    bars.add("tracebacks", tracebacks, "==", 0)
    bars.finish()


if __name__ == "__main__":
    asyncio.run(main())

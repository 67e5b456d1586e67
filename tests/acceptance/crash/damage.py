"""A run folder that was damaged is refused in one line, or gives the figures that it gave before.

The folder of a run of two engines at two loads, in virtual time, is changed as disks, copies and editors change files:
cut, bits flipped, bytes removed, repeated or zeroed, lines removed, repeated or exchanged, files removed or exchanged.
Then it is read as ``bakeoff report`` reads it. A log whose end is missing may hold fewer trials, as after a crash.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from bakeoff.harness.cli.stored import read
from bakeoff.harness.virtual import VirtualWorld, run_in
from bakeoff.results import Run, load
from bakeoff.results.errors import ResultsError
from bakeoff.results.log.run_log import FileAdded, RunEnded
from bakeoff.results.log.store import LOG_NAME
from bakeoff.results.metrics.quality import QualityRecord, QualitySample, pooled
from bakeoff.results.records import RunStatus
from benchmarks.bars import Bars
from tests.acceptance.crash.log_cut import ENGINES, EXPERIMENT

Change = Callable[[bytes, random.Random], bytes]


class Reading(StrEnum):
    """How a damaged run was read."""

    REFUSED = "refused"
    EQUAL = "equal"
    """All figures are as before."""
    FEWER = "fewer trials"
    """As after a crash: the run is incomplete, and the figures of the trials in its log are as before."""
    WRONG = "wrong"


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def remove(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def repeat(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:]


def zero(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + bytes(end - start) + data[end:]


def insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:]


def remove_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def repeat_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return b"".join(lines)


def exchange_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def exchange_digits(data: bytes, rng: random.Random) -> bytes:
    """Another number, which is no less well-formed."""
    places = [at for at, byte in enumerate(data) if byte in b"123456789"]
    if not places:
        return data[1:]
    at = rng.choice(places)
    return data[:at] + bytes([rng.choice([digit for digit in b"123456789" if digit != data[at]])]) + data[at + 1 :]


CHANGES: Sequence[Change] = (
    cut, flip, remove, repeat, zero, insert, remove_line, repeat_line, exchange_lines, exchange_digits,
)  # fmt: skip


def damage(run: Path, rng: random.Random) -> str:
    """Change one or two files of a run folder; returns what was done."""
    done: list[str] = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.stat().st_size]
        logs = [path for path in files if path.name == LOG_NAME]
        path = rng.choice(logs if logs and rng.random() < 0.25 else files)
        name = path.relative_to(run).as_posix()
        kind = rng.randrange(12)
        if kind == 10:
            path.unlink()
            done.append(f"{name} removed")
        elif kind == 11:
            other = rng.choice([file for file in files if file.suffix == path.suffix])
            shutil.copyfile(other, path.with_name("copy"))
            path.with_name("copy").replace(path)
            done.append(f"{other.relative_to(run).as_posix()} in place of {name}")
        else:
            change = CHANGES[kind % len(CHANGES)]
            path.write_bytes(change(path.read_bytes(), rng))
            done.append(f"{change.__name__} in {name}")
    return ", ".join(done)


def figures(run: Run) -> dict[str, object]:
    """All that a report shows of each finished trial."""
    return {t.record.id: (t.record.verdict, t.metrics, t.load_metrics, t.server, t.quality) for t in run.finished}


def with_quality(run: Run) -> Run:
    """The run with a comparison of answers in one trial, as the harness adds it."""
    record = run.finished[0].record
    samples = [QualitySample(index=0, session="s", turn=0, tokens=20, agreement=0.95, mean_regret=0.01)]
    run.folder.trial(record.id).write_quality(QualityRecord(samples=samples, summary=pooled(samples)))
    (ended,) = [event for event in run.log.events if isinstance(event, RunEnded)]
    files = run.folder.trial_of(record).stored_files()
    added = [FileAdded(trial=record.id, name=name, file=file) for name, file in files.items()]
    run.folder.write_log([*(event for event in run.log.events if event is not ended), *added, ended])
    return load(run.path)


def reading(run: Path, whole: dict[str, object]) -> tuple[Reading, str]:
    """How a run is read now, and the message or what is wrong.

    Args:
        run: its folder.
        whole: the figures of its trials before it was damaged.
    """
    try:
        now = read(run)
        kept = figures(now)
    except ResultsError as error:
        is_line = str(error) and "\n" not in str(error)
        return (Reading.REFUSED if is_line else Reading.WRONG), str(error)
    except Exception as error:  # noqa: BLE001  (any other error is a fault)
        return Reading.WRONG, repr(error)
    if wrong := [trial for trial, figure in kept.items() if figure != whole.get(trial)]:
        return Reading.WRONG, f"{', '.join(wrong)} read otherwise"
    if kept == whole:
        return Reading.EQUAL, ""
    return (Reading.FEWER if _is_cut_off(now) else Reading.WRONG), f"{len(kept)} trials, {now.status.value}"


def _is_cut_off(run: Run) -> bool:
    return run.status is RunStatus.INCOMPLETE and bool(run.unfinished)


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.choice([1, 4, 100, 5_000]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=500, help="damaged folders (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="(default: %(default)s)")
    options = parser.parse_args()
    counts: Counter[Reading] = Counter()
    slowest_s = 0.0
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as name:
        run = with_quality(run_in(VirtualWorld(ENGINES), EXPERIMENT, Path(name, "whole")))
        whole = figures(run)
        for number in range(options.folders):
            rng = random.Random(f"{options.seed}/{number}")
            copy = Path(name, "damaged", run.path.name)
            shutil.copytree(run.path, copy)
            done = damage(copy, rng)
            started = time.monotonic()
            result, message = reading(copy, whole)
            slowest_s = max(slowest_s, time.monotonic() - started)
            counts[result] += 1
            if result is Reading.WRONG:
                print(f"folder {number}: {done}: {message}")
            shutil.rmtree(copy)
    print(f"{options.folders} damaged folders: {', '.join(f'{count} {result}' for result, count in counts.items())}")
    bars = Bars()
    bars.add("damaged_runs", counts[Reading.WRONG], "==", 0)
    bars.add("damaged_runs_refused", counts[Reading.REFUSED], ">=", options.folders // 2)
    bars.add("damaged_runs_slowest_s", slowest_s, "<=", 15)
    bars.finish()


if __name__ == "__main__":
    main()

"""A run log that is cut at any byte keeps its complete trials, and the run can be resumed.

The log of a run of two engines at two loads, in virtual time, is cut at random bytes. The trials that remain in the log
must read as before, and a run resumed from it must reuse exactly those trials and end complete with the same figures.
"""

import argparse
import contextlib
import random
import shutil
import tempfile
from pathlib import Path

from bakeoff import results
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.results import Run
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.log.store import LOG_NAME, RunFolder
from bakeoff.results.records import RunStatus
from benchmarks.bars import Bars

EXPERIMENT = virtual_experiment(
    ["a", "b"],
    [{"concurrency": 3}, {"rate_per_s": 20.0, "arrival": "poisson"}],
    repeats=2,
    trial={"ramp_s": 0.2, "duration_s": 1.2, "warm_up_s": 0.0},
    # Labels are not part of a trial's fingerprint: equal engines would reuse each other's trials.
    engines=[{"adapter": "reference", "label": label, "env": {"ENGINE": label}} for label in "ab"],
)
ENGINES = {"a": VirtualEngine(), "b": VirtualEngine(slowdown=1.3)}


def figures(run: Run) -> dict[str, object]:
    """Verdict and figures of each finished trial, as a report shows them."""
    return {trial.record.id: (trial.record.verdict, trial.metrics, trial.server) for trial in run.finished}


def check(whole: Run, scratch: Path, byte: int) -> list[str]:
    """The faults of a run whose log is cut at a byte, and of the run that is resumed from it."""
    cut = scratch / whole.path.name
    shutil.copytree(whole.path, cut)
    with (cut / LOG_NAME).open("r+b") as log:
        log.truncate(byte)
    original, kept = figures(whole), {}
    with contextlib.suppress(RunUnreadable):  # nothing is left but a part of the first event
        kept = figures(results.load(cut))
    faults = [f"{trial} reads otherwise" for trial, figure in kept.items() if figure != original[trial]]
    resumed = run_in(VirtualWorld(ENGINES), EXPERIMENT, scratch / "resumed", earlier=RunFolder(cut))
    reused = {trial.record.id for trial in resumed.finished if trial.record.reused_from}
    faults += [f"{trial} was measured again" for trial in kept.keys() - reused]
    faults += [f"{trial} was reused" for trial in reused - kept.keys()]
    if resumed.status is not RunStatus.COMPLETE or figures(resumed).keys() != original.keys():
        faults.append(f"the resumed run is {resumed.status.value} with {len(resumed.finished)} trials")
    faults += [f"{trial} differs when resumed" for trial in kept if figures(resumed)[trial] != original[trial]]
    shutil.rmtree(scratch)
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=500, help="bytes at which the log is cut (default: %(default)s)")
    cuts = parser.parse_args().cuts
    rng = random.Random(23)
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as name:
        folder = Path(name)
        whole = run_in(VirtualWorld(ENGINES), EXPERIMENT, folder / "whole")
        size = whole.folder.log_path.stat().st_size
        wrong: dict[int, list[str]] = {}
        for number in range(cuts):
            byte = rng.randrange(size)
            if faults := check(whole, folder / f"{number}", byte):
                wrong[byte] = faults
                print(f"byte {byte}: {'; '.join(faults)}")
    print(f"{cuts} cuts of {size:,} bytes, {len(whole.finished)} trials")
    bars = Bars()
    bars.add("cuts_with_a_fault", len(wrong), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()

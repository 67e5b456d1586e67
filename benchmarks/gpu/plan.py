"""Plans against measurements on this GPU, of the reference engine and vLLM. Part of ``make bench-gpu``.

Takes a run of ``profile.toml``, predicts each of its loads from the others, and searches for the highest Poisson rate
of each engine that meets an SLO, as ``benchmarks/plan/cpu.py`` does on a CPU.
"""

import argparse
from pathlib import Path

import msgspec

import bakeoff
from bakeoff.harness.sizing.calibration import Fitter, calibrate
from bakeoff.harness.sizing.gpus import gpu_table
from bakeoff.harness.sizing.measured import measured_engines
from bakeoff.harness.sizing.model import load_model
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from benchmarks.bars import Bars
from benchmarks.plan.cpu import CAPACITY_GOAL, GOALS, capacity_error, largest_errors, print_predictions

EXPERIMENT = Path(__file__).with_name("profile.toml")
TRIALS = 6
"""Of a search; four of them share a start of the engine."""
RAMP_S, WINDOW_S = 12.0, 40.0
"""Of a search's trials: answers take up to 10 s, and in 20 s arrivals alone doubled the requests in flight."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run of profile.toml")
    parser.add_argument("--gpu", required=True, help="name of this GPU in bakeoff plan")
    parser.add_argument("--engine", nargs="+", default=["reference", "vllm"])
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for runs")
    parser.add_argument("--no-search", action="store_true", help="skip the capacity under an SLO")
    options = parser.parse_args()
    bf16 = PRECISIONS["bf16"], CACHES["bf16"]
    fitter = Fitter(load_model("llama-3.1-8b"), *bf16, gpu_table()[options.gpu])
    bars = Bars()
    for engine in measured_engines(options.run):
        if engine.engine not in options.engine:
            continue
        calibration = calibrate(fitter, engine)
        print(f"{engine.engine}: {calibration.efficiency}")
        print_predictions(calibration.predictions)
        for metric, error in largest_errors(calibration.predictions, GOALS).items():
            bars.add(f"{engine.engine}_{metric}_error_percent", error, "<=", GOALS[metric])
        if not options.no_search:
            experiment = bakeoff.experiment(EXPERIMENT)
            trial = msgspec.structs.replace(experiment.trial, ramp_s=RAMP_S, duration_s=WINDOW_S)
            experiment = msgspec.structs.replace(experiment, trial=trial)
            error = capacity_error(fitter.times(calibration.efficiency), engine, experiment, options.out, TRIALS)
            bars.add(f"{engine.engine}_capacity_error_percent", error, "<=", CAPACITY_GOAL)
    bars.finish()


if __name__ == "__main__":
    main()

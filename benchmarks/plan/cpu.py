"""Plans against measurements on this CPU (SmolLM2, reference engine). Run by ``make bench-plan``.

Measures the machine, then ``cpu.toml``: five closed loops, three minutes. Fits the step-time model to 1, 4 and 8 users,
and predicts memory, ITL and TTFT of 2 and 6. Then searches for the highest Poisson rate that meets an SLO, with ten
trials in five minutes, and compares it with the rate that the fit predicts. The SLO's bounds are the latencies of the
simulated server at 75 % of its highest request rate. There a rate that is 1 % higher raises TTFT by 3 %, so that trials
can tell rates apart.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

import bakeoff
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.host.ceilings import measure_machine
from bakeoff.harness.sizing.calibration import Fitter, Prediction, predict
from bakeoff.harness.sizing.gpus import Gpu, gpu_table
from bakeoff.harness.sizing.measured import MeasuredEngine, measured_engines
from bakeoff.harness.sizing.model import load_model
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from bakeoff.harness.sizing.sizing import Server, capacity_per_s
from bakeoff.harness.sizing.step_times import Efficiency, StepTimes
from bakeoff.results.machine.ceilings import Ceilings
from bakeoff.results.metrics.objectives import objectives
from bakeoff.results.records import Load
from benchmarks.bars import Bars
from benchmarks.experiments import measured

EXPERIMENT = Path(__file__).with_name("cpu.toml")
GOALS = {"memory": 3.0, "itl_p50_s": 10.0, "ttft_p50_s": 15.0}
CAPACITY_GOAL = 15.0
FITTED, PREDICTED = ("c=1", "c=4", "c=8"), ("c=2", "c=6")
_SLO_LOAD = 0.75  # of the simulated server's highest rate
_SEED = 1
_TRIALS, _RANGE = 10, 2.0  # of the search, from the predicted rate / range to the predicted rate * range


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="an existing run of cpu.toml")
    parser.add_argument("--machine", type=Path, help="output of bakeoff lab machine --json; default: measure now")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for runs")
    parser.add_argument("--no-search", action="store_true", help="skip the capacity under an SLO")
    options = parser.parse_args()
    cpu = gpu_table(machine=options.machine)["cpu"] if options.machine else device(measure_machine()[0])
    print(f"{cpu.title}: {cpu.bytes_per_s / 1e9:.1f} GB/s, {cpu.flops('bf16') / 1e9:.0f} GFLOP/s in bf16")
    fitter = Fitter(load_model("smollm2-135m"), PRECISIONS["bf16"], CACHES["bf16"], cpu)
    engine = measured_engines(options.run or measured(EXPERIMENT, options.out))[0]
    if missing := {*FITTED, *PREDICTED} - {load.label for load in engine.loads if load.requests and load.measured}:
        sys.exit(f"{engine.run} has no VALID trial of {', '.join(sorted(missing))}; run it again")
    fit = fitter.efficiency(engine, [load for load in engine.loads if load.label in FITTED])
    print(f"fitted to {', '.join(FITTED)}: {fit}")
    bars = Bars()
    for metric, error in worst_errors(fitter, engine, fit).items():
        bars.add(f"{metric}_error_percent", error, "<=", GOALS[metric])
    if not options.no_search:
        error = capacity_error(fitter.times(fit), engine, bakeoff.experiment(EXPERIMENT), options.out)
        bars.add("capacity_error_percent", error, "<=", CAPACITY_GOAL)
    bars.finish()


def device(ceilings: Ceilings) -> Gpu:
    """The measured machine as a device of the planner."""
    rates = {"fp32": ceilings.flops_per_s["float32"], "bf16": ceilings.flops_per_s["bfloat16"]}
    return Gpu(
        name="cpu",
        title=ceilings.name,
        memory_bytes=ceilings.memory_bytes,
        bytes_per_s=ceilings.read_bytes_per_s,
        flops_per_s=rates,
        is_measured=True,
    )


def worst_errors(fitter: Fitter, engine: MeasuredEngine, fit: Efficiency) -> dict[str, float]:
    """Prints the predictions; returns their `largest_errors`."""
    fixed = [
        peak - fitter.modelled_bytes(engine, fitter.served(engine, load, fit))
        for load in engine.loads
        if load.label in FITTED and (peak := fitter.peak_of(engine, load)) is not None
    ]
    fixed_bytes = median(fixed) if fixed else None
    loads = [load for load in engine.loads if load.label in PREDICTED]
    rows = [row for load in loads for row in predict(fitter, engine, load, fit, fixed_bytes)]
    print_predictions(rows)
    return largest_errors(rows, GOALS)


def print_predictions(predictions: Iterable[Prediction]) -> None:
    """One line each: load, metric, measured and predicted value, error."""
    for row in predictions:
        print(f"{row.load:<5} {row.metric:<20} {row.measured:>12.6g} {row.predicted:>12.6g} {row.error:+.1%}")


def largest_errors(predictions: Iterable[Prediction], metrics: Iterable[str]) -> dict[str, float]:
    """Largest error of each metric in percent; 100 for a metric without a measurement."""
    worst: dict[str, float] = {}
    for row in predictions:
        worst[row.metric] = max(worst.get(row.metric, 0.0), abs(100 * row.error))
    return {metric: worst.get(metric, 100.0) for metric in metrics}


def capacity_error(
    times: StepTimes, engine: MeasuredEngine, experiment: Experiment, out: Path, trials: int = _TRIALS
) -> float:
    """Error of the predicted capacity of an engine against the searched one, in percent.

    Args:
        times: of the engine's steps.
        engine: its requests at the last load are the traffic.
        experiment: with this engine; the search replaces its loads.
        out: folder for the search's run.
        trials: of the search.
    """
    server = Server(times, engine.limits, engine.loads[-1].requests, _SEED)
    busy = server.open(_SLO_LOAD * server.closed(engine.limits.sequences).requests_per_s)
    slo = f"ttft_p50<{busy.ttft(0.5) * 1e3:.0f}ms,tpot_p50<{(busy.tpot(0.5) or 0.0) * 1e3:.1f}ms"
    predicted = capacity_per_s(server, objectives(slo))
    searched = msgspec.structs.replace(
        experiment,
        engines=[candidate for candidate in experiment.engines if candidate.name == engine.engine],
        loads=[Load(rate_per_s=predicted, arrival="poisson")],
        profile=False,
        kernels=False,
    )
    run = bakeoff.search(searched, slo=slo, out=out, low=predicted / _RANGE, high=predicted * _RANGE, trials=trials)
    assert run.search is not None
    capacity = run.search.engines[0]
    if not capacity.level:
        print(f"{engine.engine}: {slo}: predicted {predicted:.3g}/s, met at no rate from {predicted / _RANGE:.3g}/s")
        return 100.0
    error = predicted / capacity.level - 1
    ends = ", ".join("–" if end is None else f"{end:.3g}" for end in (capacity.low, capacity.high))
    print(
        f"{engine.engine}: {slo}: predicted {predicted:.3g}/s, measured {capacity.level:.3g}/s [{ends}], "
        f"{100 * error:+.1f} %",
        flush=True,
    )
    return abs(100 * error)


if __name__ == "__main__":
    main()

"""Bar 3: plans against measurements on this CPU (SmolLM2, reference engine). Run by ``make bench-plan``.

Measures the machine, then ``cpu.toml``: five closed loops, a minute and a half. Fits the step-time model to every other
load and predicts the rest: memory, ITL, TTFT. Then searches for the highest Poisson rate that keeps an SLO, three to
four minutes, and compares it with the rate that the fit predicts. The SLO's bounds are what the simulated server shows
at 60 % of the requests that it can do.
"""

import argparse
from pathlib import Path
from statistics import median

import msgspec

import bakeoff
from benchmarks.bars import Bars
from benchmarks.experiments import measured
from harness.host.ceilings import measure_machine
from harness.planning.calibration import Fitter, predict
from harness.planning.gpus import Gpu, gpu_table
from harness.planning.measured import MeasuredEngine, measured_engines
from harness.planning.model import load_model
from harness.planning.precision import CACHES, PRECISIONS
from harness.planning.sizing import Server, capacity_per_s
from harness.planning.step_times import Efficiency, StepTimes, StepWork
from results.ceilings import Ceilings
from results.objectives import objectives
from results.records import Load

EXPERIMENT = Path(__file__).with_name("cpu.toml")
GOALS = {"memory": 3.0, "itl_p50_s": 10.0, "ttft_p50_s": 15.0}
CAPACITY_GOAL = 15.0
_SLO_LOAD = 0.6  # of the rate that the simulated server can do
_SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run of cpu.toml that exists")
    parser.add_argument("--machine", type=Path, help="bakeoff machine --json, if it was measured before")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where to")
    parser.add_argument("--no-search", action="store_true", help="without the capacity under an SLO")
    options = parser.parse_args()
    cpu = gpu_table(machine=options.machine)["cpu"] if options.machine else device(measure_machine()[0])
    print(f"{cpu.title}: {cpu.bytes_per_s / 1e9:.1f} GB/s, {cpu.flops('bf16') / 1e9:.0f} GFLOP/s in bf16")
    fitter = Fitter(load_model("smollm2-135m"), PRECISIONS["bf16"], CACHES["bf16"], cpu)
    engine = measured_engines(options.run or measured(EXPERIMENT, options.out))[0]
    fit = fitter.efficiency(engine, engine.loads[::2])
    print(f"fitted to {', '.join(load.label for load in engine.loads[::2])}: {fit}")
    bars = Bars()
    for metric, error in worst_errors(fitter, engine, fit).items():
        bars.add(f"{metric}_error_percent", error, "<=", GOALS[metric])
    if not options.no_search:
        bars.add("capacity_error_percent", capacity_error(cpu, engine, fit, options.out), "<=", CAPACITY_GOAL)
    bars.finish()


def device(ceilings: Ceilings) -> Gpu:
    """What was measured now, as the planner takes it."""
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
    """Largest error of each metric over the loads that were not fitted, in percent; 100 where none was measured."""
    fitted = engine.loads[::2]
    fixed = [
        peak - fitter.modelled_bytes(engine, fitter.served(engine, load, fit))
        for load in fitted
        if (peak := fitter.peak_of(engine, load)) is not None
    ]
    worst: dict[str, float] = {}
    for load in engine.loads[1::2]:
        for each in predict(fitter, engine, load, fit, median(fixed)):
            print(f"{each.load:<5} {each.metric:<20} {each.measured:>12.6g} {each.predicted:>12.6g} {each.error:+.1%}")
            worst[each.metric] = max(worst.get(each.metric, 0.0), abs(100 * each.error))
    return {metric: worst.get(metric, 100.0) for metric in GOALS}


def capacity_error(cpu: Gpu, engine: MeasuredEngine, fit: Efficiency, out: Path) -> float:
    """Predicted over searched capacity, in percent."""
    costs = load_model("smollm2-135m").costs(PRECISIONS["bf16"], CACHES["bf16"])
    times = StepTimes(StepWork(costs), cpu, PRECISIONS["bf16"], fit)
    server = Server(times, engine.limits, engine.loads[-1].requests, _SEED)
    busy = server.open(_SLO_LOAD * server.closed(engine.limits.sequences).requests_per_s)
    slo = f"ttft_p50<{busy.ttft(0.5) * 1e3:.0f}ms,itl_p90<{(busy.itl(0.9) or 0.0) * 1e3:.1f}ms"
    predicted = capacity_per_s(server, objectives(slo))
    experiment = bakeoff.experiment(EXPERIMENT)
    template = Load(rate_per_s=predicted, arrival="poisson")
    run = bakeoff.search(
        msgspec.structs.replace(experiment, loads=[template]),
        slo,
        out=out,
        low=predicted / 4,
        high=predicted * 4,
        trials=10,
    )
    assert run.search is not None
    measured_per_s = run.search.engines[0].level
    print(f"{slo}: predicted {predicted:.3g}/s, measured {measured_per_s or 0.0:.3g}/s")
    return 100.0 if not measured_per_s else abs(100 * (predicted / measured_per_s - 1))


if __name__ == "__main__":
    main()

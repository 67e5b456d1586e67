"""Plans for fewer bits from a calibration in bfloat16, against published runs. Run by ``make bench-plan``.

Fits the step-time model to the bfloat16 trials of two published runs on H200s (Llama-3.1-8B shapes, the reference
engine and vLLM 0.24), and predicts the trials with INT8, INT4 and FP8 weights. The shares of
:mod:`bakeoff.harness.sizing.precision` describe what kernels for fewer bits reach.
"""

from pathlib import Path

from bakeoff.harness.sizing.calibration import Fitter, Prediction, predict
from bakeoff.harness.sizing.gpus import gpu_table
from bakeoff.harness.sizing.measured import measured_engines
from bakeoff.harness.sizing.model import load_model
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from benchmarks.bars import Bars
from benchmarks.plan.cpu import largest_errors

RUNS = {"reference": "h200-quantised", "vllm": "h200-quantised-vllm"}
CALIBRATED = "bf16"
GOALS = {"itl_p50_s": 10.0, "ttft_p50_s": 15.0, "output_tokens_per_s": 10.0}
"""Largest errors in percent."""


def main() -> None:
    model, gpu = load_model("llama-3.1-8b"), gpu_table()["h200"]
    bars = Bars()
    print(f"{'engine':<10}{'precision':<11}{'load':<6}" + "".join(f"{metric:>21}" for metric in GOALS))
    for label, run in RUNS.items():
        engines = {engine.engine: engine for engine in measured_engines(Path("docs/results", run))}
        calibrated = engines.pop(CALIBRATED)
        fit = Fitter(model, PRECISIONS[CALIBRATED], CACHES["bf16"], gpu).efficiency(calibrated, calibrated.loads)
        for precision, engine in engines.items():
            fitter = Fitter(model, PRECISIONS[precision], CACHES["bf16"], gpu)
            rows: list[Prediction] = []
            for load in engine.loads:
                of_load = predict(fitter, engine, load, fit, None)
                errors = {row.metric: row.error for row in of_load}
                cells = "".join(f"{errors[name]:>+21.1%}" for name in GOALS)
                print(f"{label:<10}{precision:<11}{load.label:<6}{cells}")
                rows += of_load
            for metric, error in largest_errors(rows, GOALS).items():
                bars.add(f"{label}_{precision}_{metric}_error_percent", error, "<=", GOALS[metric])
    bars.finish()


if __name__ == "__main__":
    main()

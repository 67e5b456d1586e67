"""Bar 3: plans for fewer bits from a calibration in bfloat16, against published runs. Run by ``make bench-plan``.

Fits the step-time model to the bfloat16 trials of two published runs on H200s (Llama-3.1-8B shapes, the reference
engine and vLLM 0.24), and predicts the trials with INT8, INT4 and FP8 weights. The shares of
:mod:`harness.planning.precision` describe what kernels for fewer bits reach.
"""

from pathlib import Path

from benchmarks.bars import Bars
from harness.planning.calibration import Fitter, predict
from harness.planning.gpus import gpu_table
from harness.planning.measured import measured_engines
from harness.planning.model import load_model
from harness.planning.precision import CACHES, PRECISIONS

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
            worst = dict.fromkeys(GOALS, 0.0)
            for load in engine.loads:
                errors = {row.metric: 100 * row.error for row in predict(fitter, engine, load, fit, None)}
                print(
                    f"{label:<10}{precision:<11}{load.label:<6}"
                    + "".join(f"{errors[name]:>+19.1f} %" for name in GOALS)
                )
                worst = {name: max(worst[name], abs(errors[name])) for name in GOALS}
            for metric, goal in GOALS.items():
                bars.add(f"{label}_{precision}_{metric}_error_percent", worst[metric], "<=", goal)
    bars.finish()


if __name__ == "__main__":
    main()

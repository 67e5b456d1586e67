"""Fits the step-time model to a measured run, and predicts each load from the others.

The parameters are the engine's shares of bandwidth and of products per second, the fixed seconds of a step and of each
sequence in it, and delays outside steps: per request, per token, and per step on an idle engine. They minimise the
squared logarithms of simulated over measured ITL p50, TTFT p50, TPOT p50 and output tokens per second of every load
(trust region, scipy); the server of :mod:`bakeoff.harness.sizing.server` simulates the requests that were sent. An
open loop's throughput is left out, since its schedule sets it. A prior keeps parameters that a run does not determine
near their start values. Few loads determine the additions of an idle engine or a busy front end, so those have a
stronger prior.
"""

import math
import re
from collections.abc import Sequence
from pathlib import PurePath
from statistics import median

import msgspec
import numpy as np

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.gpus import Gpu
from bakeoff.harness.sizing.measured import METRICS, Load, MeasuredEngine
from bakeoff.harness.sizing.memory import workspace_bytes
from bakeoff.harness.sizing.model import Model
from bakeoff.harness.sizing.precision import CachePrecision, Precision
from bakeoff.harness.sizing.server import Served, simulate
from bakeoff.harness.sizing.step_times import Efficiency, StepTimes, StepWork, kv_share

_START = {  # as the fields of Efficiency; on a CPU, which runs no step behind another one, and on a GPU
    False: (0.6, 0.4, 1e-3, 2e-4, 1e-2, 5e-5, 1e-5),
    True: (0.85, 0.85, 3e-4, 5e-6, 5e-3, 5e-5, 4e-3),
}
_MOST_BYTES_SHARE = 1.05
"""Of a GPU's bandwidth that a fit may take, beyond which it explains a smaller model."""
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)b\b", re.IGNORECASE)
"""Parameters in billions, in a model's name."""
_LOW, _HIGH = (0.02, 0.02, 1e-6, 1e-8, 1e-5, 1e-7, 1e-7), (1.2, 1.2, 0.2, 0.02, 2.0, 0.01, 0.1)
_PRIOR = (0.01, 0.01, 0.01, 0.01, 0.03, 0.05, 0.2)
"""Weights of the squared distances of their logarithms from the start."""
_WEIGHTS = {"itl_p50_s": 1.0, "ttft_p50_s": 0.3, "output_tokens_per_s": 0.5, "tpot_p50_s": 1.0}
"""Weights of errors: between repeats TTFT varies several times as much as ITL and TPOT."""
_STEP = 0.02  # of a logarithm, for differences: the simulation's results have small jumps
_FEWEST_LOADS = 3
_MEMORY = "memory"


class Prediction(msgspec.Struct, frozen=True):
    """One figure of one load.

    Attributes:
        load: label.
        metric: a name of the catalogue, or ``memory``.
        measured: median over the repeats.
        predicted: by a fit to the other loads; with fewer than three, by a fit to all.
        spread: largest less smallest of the repeats, over their median; None with one repeat.
    """

    load: str
    metric: str
    measured: float
    predicted: float
    spread: float | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted / self.measured - 1


class Calibration(msgspec.Struct, frozen=True):
    """An engine's fit.

    Attributes:
        engine: label.
        run: path of the run.
        efficiency: fitted to all loads.
        fixed_bytes: memory beyond the model's own, on a GPU beyond the share that the engine reserves; None if it was
            not measured.
        is_prediction: whether predictions come from other loads.
        predictions: of each load.
    """

    engine: str
    run: str
    efficiency: Efficiency
    fixed_bytes: float | None
    is_prediction: bool
    predictions: list[Prediction]


class Fitter:
    """Fits engines that served one model on one device.

    Args:
        model: the model.
        precision: of its weights.
        cache: of its KV cache.
        gpu: the device.
        ranks: GPUs of tensor parallelism.

    Raises:
        BadPlan: there are several GPUs, but none has a link to others.
    """

    def __init__(self, model: Model, precision: Precision, cache: CachePrecision, gpu: Gpu, ranks: int = 1) -> None:
        if ranks > 1 and gpu.link_bytes_per_s is None:
            raise BadPlan(
                f"the engine ran on {ranks} GPUs, but {gpu.name} has no link to others; give a --gpu with "
                "link_bytes_per_s, from --gpus FILE.toml if it is not known"
            )
        self._model, self._precision, self._gpu = model, precision, gpu
        self._costs = model.costs(precision, cache)
        self._ranks = ranks
        self._work = StepWork(self._costs, ranks)
        self._is_gpu = gpu.name != "cpu"

    def efficiency(self, engine: MeasuredEngine, loads: Sequence[Load], start: Efficiency | None = None) -> Efficiency:
        """The fit to some loads of an engine, from the start values of its kind of device or from another fit."""
        from scipy.optimize import least_squares  # noqa: PLC0415  (0.3 s; only calibrations need it)

        origin = np.log(_START[self._is_gpu])
        if self._precision.converts:
            origin[0] += math.log(self._precision.read_share_of(engine.adapter))
        first = origin if start is None else np.log(np.clip(_vector(start), _LOW, _HIGH))

        def residuals(logs: np.ndarray) -> np.ndarray:
            fit = self._efficiency(np.exp(logs), engine)
            errors = [error for load in loads for error in self._errors(engine, load, fit)]
            return np.array([*errors, *(np.array(_PRIOR) * (logs - origin))])

        bounds = np.log(_LOW) - 1e-9, np.log(_HIGH) + 1e-9
        solution = least_squares(residuals, first, bounds=bounds, diff_step=_STEP, max_nfev=25, xtol=1e-4, ftol=1e-5)
        return self._efficiency(np.exp(solution.x), engine)

    def _efficiency(self, values: np.ndarray, engine: MeasuredEngine) -> Efficiency:
        """Shares of the precision itself where weights are only stored in it; others have shares near those of bf16."""
        source = f"fitted to {engine.engine} in {engine.run}"
        shares_of = self._precision.name if self._precision.converts else "bf16"
        return Efficiency(*map(float, values), source=source, adapter=engine.adapter, precision=shares_of)

    def times(self, efficiency: Efficiency) -> StepTimes:
        """Step times of an engine with this fit."""
        return StepTimes(self._work, self._gpu, self._precision, efficiency)

    def served(self, engine: MeasuredEngine, load: Load, efficiency: Efficiency) -> Served:
        """The simulated load."""
        return simulate(
            load.requests,
            self.times(efficiency),
            engine.limits,
            concurrency=load.concurrency,
            max_in_flight=load.max_in_flight,
            delays=efficiency.delays,
        )

    def _errors(self, engine: MeasuredEngine, load: Load, efficiency: Efficiency) -> list[float]:
        values = simulated(load, self.served(engine, load, efficiency))
        return [
            weight * math.log(values[name] / load.measured[name])
            for name, weight in _WEIGHTS.items()
            if name in values and load.measured.get(name)
        ]

    @property
    def peak_metric(self) -> str:
        """The metric of the device's memory."""
        return "peak_gpu_bytes" if self._is_gpu else "peak_host_bytes"

    def modelled_bytes(self, engine: MeasuredEngine, served: Served) -> float:
        """Memory that the model explains: a reserved share of the device, or what the load used."""
        if self._is_gpu and engine.memory_fraction is not None:
            return engine.memory_fraction * self._gpu.memory_bytes * self._ranks
        workspace = workspace_bytes(self._model, served.peak_step_tokens, 1, self._ranks) * self._ranks
        kv_bytes = self._costs.kv_bytes_per_token * kv_share(self._costs, self._ranks) * self._ranks
        return self._costs.weight_bytes + served.peak_kv_tokens * kv_bytes + workspace

    def check_device(self, engine: MeasuredEngine) -> None:
        """Refuse an engine that ran on another kind of device.

        Raises:
            BadPlan: it ran without a GPU and this device is one, or the reverse.
        """
        if engine.on_gpu is False and self._is_gpu:
            raise BadPlan(
                f"{engine.engine} ran without a GPU in {engine.run}, which tells nothing about {self._gpu.name}; give "
                "a run on a GPU, or --gpu cpu with --machine"
            )
        if engine.on_gpu and not self._is_gpu:
            raise BadPlan(
                f"{engine.engine} ran on a GPU in {engine.run}, which tells nothing about a CPU; give a run without "
                "GPUs, or the GPU with --gpu"
            )

    def check_model(self, engine: MeasuredEngine) -> None:
        """Refuse an engine that served a model whose name states another size.

        Raises:
            BadPlan: it did.
        """
        own, other = (_size_of(name) for name in (self._model.name, engine.model))
        if own and other and own != other:
            raise BadPlan(
                f"{engine.engine} served '{engine.model}' in {engine.run}, which tells nothing about "
                f"{self._model.name}; give a run of this model, or plan without --from-run"
            )

    def check_fit(self, engine: MeasuredEngine, fit: Efficiency) -> None:
        """Refuse a fit that reads weights faster than the GPU can.

        Raises:
            BadPlan: it does.
        """
        reads_codes = self._precision.weight_bits < 16 and not self._precision.converts
        if self._is_gpu and not reads_codes and fit.bytes_share > _MOST_BYTES_SHARE:
            raise BadPlan(
                f"{engine.engine} was faster in {engine.run} than {self._gpu.name} can read the weights of "
                f"{self._model.name}: it served a smaller model, fewer bits, drafted tokens, or ran on another device; "
                "give a run of this model, with --precision and --gpu as they were"
            )

    def peak_of(self, engine: MeasuredEngine, load: Load) -> float | None:
        """Measured memory; None if it is absent or not the engine's own."""
        if engine.why_no_memory:
            return None
        return load.measured.get(self.peak_metric)


def _size_of(name: str) -> float | None:
    """Parameters in billions by a model's name, of which a mixture of experts also names those in use."""
    return max((float(size) for size in _SIZE.findall(PurePath(name).name)), default=None)


def calibrate(fitter: Fitter, engine: MeasuredEngine) -> Calibration:
    """Fit an engine, and predict each of its loads from the others.

    Raises:
        BadPlan: the engine ran on another kind of device, or served another model; no load has requests with token
            counts and figures; or a figure is 0 or infinite.
    """
    fitter.check_device(engine)
    fitter.check_model(engine)
    loads = [load for load in engine.loads if load.requests and load.measured]
    if not loads:
        raise BadPlan(f"{engine.run} has no requests of {engine.engine} with token counts, or no figures of them")
    _check_figures(engine, loads)
    whole = fitter.efficiency(engine, loads)
    fitter.check_fit(engine, whole)
    apart = len(loads) >= _FEWEST_LOADS
    extra = {load.label: _extra_bytes(fitter, engine, load, whole) for load in loads}
    known_bytes = [value for value in extra.values() if value is not None]
    predictions: list[Prediction] = []
    for load in loads:
        others = [other for other in loads if other is not load] if apart else loads
        fit = fitter.efficiency(engine, others, whole) if apart else whole
        fixed = [value for other in others if (value := extra[other.label]) is not None]
        predictions += predict(fitter, engine, load, fit, median(fixed) if fixed else None)
    return Calibration(
        engine.engine, engine.run, whole, median(known_bytes) if known_bytes else None, apart, predictions
    )


def _check_figures(engine: MeasuredEngine, loads: Sequence[Load]) -> None:
    for load in loads:
        for name in METRICS:
            value = load.measured.get(name)
            if value is not None and not 0 < value < math.inf:
                raise BadPlan(
                    f"{engine.run}: {name} of {engine.engine} at {load.label} is {value:g}, which no step time "
                    "explains; give a run whose engine streams each token, or another --engine"
                )


def predict(
    fitter: Fitter, engine: MeasuredEngine, load: Load, efficiency: Efficiency, fixed_bytes: float | None
) -> list[Prediction]:
    """Predictions of one load by a fit, for the metrics that were measured."""
    served = fitter.served(engine, load, efficiency)
    predictions = [
        Prediction(load.label, name, load.measured[name], value, load.spread.get(name))
        for name, value in simulated(load, served).items()
        if load.measured.get(name)
    ]
    peak = fitter.peak_of(engine, load)
    if peak and fixed_bytes is not None:
        predicted = fitter.modelled_bytes(engine, served) + fixed_bytes
        predictions.append(Prediction(load.label, _MEMORY, peak, predicted, load.spread.get(fitter.peak_metric)))
    return predictions


def simulated(load: Load, served: Served) -> dict[str, float]:
    """Values of the predicted metrics; in an open loop the schedule sets the throughput."""
    output = served.output_tokens_per_s if load.concurrency is not None else None
    values = (served.itl(0.5), served.ttft(0.5) if len(served.ttft_s) else None, output, served.tpot(0.5))
    return {name: value for name, value in zip(METRICS, values, strict=True) if value}


def _extra_bytes(fitter: Fitter, engine: MeasuredEngine, load: Load, efficiency: Efficiency) -> float | None:
    peak = fitter.peak_of(engine, load)
    return None if peak is None else peak - fitter.modelled_bytes(engine, fitter.served(engine, load, efficiency))


def _vector(efficiency: Efficiency) -> list[float]:
    return list(msgspec.structs.astuple(efficiency)[: len(_LOW)])

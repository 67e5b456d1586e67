"""The reference engine beside real vLLM and Transformers on one or several GPUs, without HTTP.

All load one checkpoint with the shapes of ``--model`` and random weights, which is written first. Cells are (requests,
prompt tokens, output tokens): bf16, greedy, exact lengths, the same random prompts, prefix caching off. A cell with one
output token is a prefill; its speed is in prompt tokens. Ours and vLLM compute as many tokens a step: vLLM's own limit
is 8,192 as a server, and 16,384 offline on large GPUs. Each engine has a process of its own, which warms up each cell
by a full run of it. The floor is the time that `reference_engine.models.costs` computes from the bandwidth and the rate
of matrix products, which are measured first.

With ``--tensor-parallel`` and ``--pipeline-parallel`` ours and vLLM divide the model alike, and the floor is that of a
device with the sum of all GPUs' ceilings. With ``--plan`` each cell stands beside what `bakeoff plan` expects of vLLM.

With ``--quantization`` all weights of the checkpoint but embedding and head are codes: int4 in groups of 128, or fp8
with a scale for each output, and activations with one for each token. Joules are those of the GPUs' own counters: hide
GPUs that no engine uses by ``CUDA_VISIBLE_DEVICES``.

A call ends when ``--budget-s`` is over. Its measurements are in ``--out``; the same command continues from there, and
measures the reference engine again if its code has changed.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bakeoff.harness.host.gpu import open_gpus, visible_to
from bakeoff.harness.sizing.gpus import gpu_table
from bakeoff.harness.sizing.model import Model
from bakeoff.harness.sizing.plan import TYPICAL
from bakeoff.harness.sizing.precision import CACHES, PRECISIONS
from bakeoff.harness.sizing.server import Limits, Request, simulate
from bakeoff.harness.sizing.step_times import StepTimes, StepWork
from bakeoff.reference_engine.models.config_readers import config_from_hf
from bakeoff.reference_engine.models.costs import Machine, ModelCosts
from benchmarks.bars import Bars
from benchmarks.gpu.parts.checkpoint import write_checkpoint
from benchmarks.gpu.parts.shapes import MODELS, shape_of
from benchmarks.gpu.sides.side import OutOfTimeError, Side, SideEndedError

DEFAULT_MODEL = "llama-3.1-8b"
LLAMA_8B = shape_of(DEFAULT_MODEL)
ROOT = Path(__file__).parents[2]
ENGINES = ("ours", "vllm", "hf")
UNFINISHED = 3  # exit status


class Cell(NamedTuple):
    """Requests that are all queued at once, and the tokens of each."""

    requests: int
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        """Tokens that count as speed: output tokens, or prompt tokens if there is only one output token."""
        return self.requests * (self.output if self.output > 1 else self.prompt)

    def prompts(self, repeat: int, vocab_size: int) -> list[list[int]]:
        """Random token ids, the same for every engine."""
        rng = random.Random(f"{self} {repeat}")
        return [[rng.randrange(vocab_size) for _ in range(self.prompt)] for _ in range(self.requests)]


GOALS = {
    Cell(1, 128, 256): 1.15, Cell(8, 128, 256): 1.10, Cell(32, 1024, 256): 1.05, Cell(64, 1024, 256): 1.03,
    Cell(256, 1024, 128): 1.0, Cell(1000, 220, 200): 1.05, Cell(16, 8000, 1): 0.97,
}  # fmt: skip
DIVIDED_GOALS = dict.fromkeys(
    (Cell(1, 128, 256), Cell(8, 128, 256), Cell(64, 1024, 256), Cell(256, 1024, 128), Cell(16, 8000, 1)), 1.0
)
"""Of a model that several GPUs divide."""
PLAN_ERROR = 0.15
QUANTISED_GOALS = {
    "int4": {Cell(1, 128, 256): 1.5, Cell(8, 128, 256): 1.3, Cell(64, 1024, 128): 1.05},
    "fp8": {
        Cell(1, 128, 256): 1.15, Cell(8, 128, 256): 1.1, Cell(64, 1024, 128): 1.05, Cell(1000, 220, 200): 1.0,
        Cell(16, 8000, 1): 1.0,
    },
}  # fmt: skip


class Results:
    """Measurements in a file; those with another model, dtype or engine option are ignored.

    Args:
        path: JSON lines; need not exist.
        setups: digest of each engine's setup.
    """

    def __init__(self, path: Path, setups: dict[str, str]) -> None:
        self._path, self._setups = path, setups
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        *lines, torn = text.split("\n")
        if torn:
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self._records: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, engine: str, cell: Cell | None, **values: Any) -> None:  # noqa: ANN401  (JSON)
        """Append one measurement; that of the machine has no cell."""
        record = {"engine": engine, "setup": self._setups[engine], "cell": cell and list(cell), **values}
        self._records.append(record)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, engine: str, cell: Cell | None = None) -> list[dict[str, Any]]:
        """Measurements of a cell."""
        key = (engine, self._setups[engine], cell and list(cell))
        return [r for r in self._records if (r["engine"], r["setup"], r["cell"]) == key]

    def median(self, engine: str, cell: Cell, key: str = "seconds") -> float | None:
        """Median of the repeats; None if there are none."""
        values = [record[key] for record in self.of(engine, cell) if record.get(key) is not None]
        return statistics.median(values) if values else None

    def missing(self, engine: str, cells: Sequence[Cell], repeats: int) -> list[tuple[Cell, int]]:
        """Cells and repeats that are still to be measured; a cell that failed is done."""
        return [
            (cell, repeat)
            for cell in cells
            if not any("error" in record for record in self.of(engine, cell))
            for repeat in range(len(self.of(engine, cell)), repeats)
        ]


def options_of(engine: str, options: argparse.Namespace) -> dict[str, Any]:
    """Options of the engine's process."""
    return {
        "device": options.device, "dtype": options.dtype, "memory": options.memory, "seats": options.seats,
        "step_tokens": options.step_tokens, "seconds": 2.0,
        "max_model_len": min(8192, options.raw["max_position_embeddings"]),
        "tensor": options.tensor_parallel, "pipeline": options.pipeline_parallel, "expert": options.expert_parallel,
        "engine": json.loads(getattr(options, f"{engine}_options", None) or "{}"),
    }  # fmt: skip


def setup_of(engine: str, options: argparse.Namespace) -> str:
    """Digest of an engine's setup; the reference engine's includes its code, so that a change is measured again."""
    settings = [options.raw, options.quantization, options.least_s, options_of(engine, options)]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for path in sorted(ROOT.glob("reference_engine/**/*")) if engine == "ours" else ():
        if path.suffix in {".py", ".cpp", ".h", ".cu"}:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def energy_meter() -> Callable[[], float | None]:
    """Reads the joules that the GPUs which the engines may use have used since they started; None without one."""
    gpus = visible_to(os.environ.get("CUDA_VISIBLE_DEVICES"), open_gpus()[0])
    return lambda: sum(gpu.nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle) for gpu in gpus) / 1e3 if gpus else None


def measure(
    engine: str,
    side: Side,
    missing: Sequence[tuple[Cell, int]],
    results: Results,
    vocab_size: int,
    joules: Callable[[], float | None] = lambda: None,
    least_s: float = 0.0,
) -> None:
    """Measure until nothing is missing or a cell fails, after which the process must not be used.

    A measurement is the mean of as many runs with the same prompts as take `least_s`.
    """
    warm_cell = None
    for cell, repeat in missing:
        answer: dict[str, Any] = {}
        if cell != warm_cell:
            # Transformers compiles nothing, and takes minutes for a large cell.
            answer = side.ask(cell.prompts(-1, vocab_size), min(cell.output, 4) if engine == "hf" else cell.output)
        if "error" not in answer:
            prompts, runs = cell.prompts(repeat, vocab_size), list[dict[str, Any]]()
            before_j = joules()
            while not runs or ("error" not in runs[-1] and sum(each["seconds"] for each in runs) < least_s):
                runs.append(side.ask(prompts, cell.output))
            after_j = joules()
            warm_cell, answer = cell, mean_of(runs)
            if before_j is not None and after_j is not None and "error" not in answer:
                answer["joules"] = (after_j - before_j) / len(runs)
        results.add(engine, cell, repeat=repeat, **answer)
        if "error" in answer:
            print(f"{engine} {tuple(cell)}: {answer['error']}", flush=True)
            return
        print(f"{engine} {tuple(cell)}: {cell.tokens / answer['seconds']:,.0f} tok/s {answer}", flush=True)


def mean_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure; the last run if it failed."""
    *_, last = runs
    if "error" in last:
        return last
    return {key: None if value is None else statistics.fmean(each[key] for each in runs) for key, value in last.items()}


def run(options: argparse.Namespace, cells: Sequence[Cell], results: Results, folder: Path) -> bool:
    """Measure what is missing; returns whether nothing is missing now."""
    deadline_s = time.monotonic() + options.budget_s
    log, joules = options.out.with_suffix(".log"), energy_meter()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not results.of("machine"):
            with Side("machine", folder, options_of("machine", options), log, deadline_s) as side:
                ceilings = side.ask([], 0)
            if "error" in ceilings:
                print(f"no floor: {ceilings['error']}", flush=True)
            else:
                results.add("machine", None, **ceilings)
        for engine in options.engine:
            while missing := results.missing(engine, cells, options.repeats):
                if time.monotonic() > deadline_s - options.start_s:
                    return False
                with Side(engine, folder, options_of(engine, options), log, deadline_s) as side:
                    print(f"{engine} started in {side.ready['start_s']:.0f} s", flush=True)
                    measure(engine, side, missing, results, options.raw["vocab_size"], joules, options.least_s)
    except OutOfTimeError:
        return False
    except SideEndedError as error:
        print(error, flush=True)
        return False
    return True


def gpus_of(options: argparse.Namespace) -> int:
    """GPUs that divide the model."""
    return options.tensor_parallel * options.pipeline_parallel


def planned_s(cell: Cell, options: argparse.Namespace) -> float:
    """Seconds that `bakeoff plan` expects of a cell on the GPU ``--plan``, by its typical engine."""
    precision, cache = PRECISIONS[options.quantization or "bf16"], CACHES["bf16"]
    model = Model(options.model, config_from_hf(options.raw, "config"))
    work = StepWork(model.costs(precision, cache), options.tensor_parallel)
    times = StepTimes(work, gpu_table()[options.plan], precision, TYPICAL)
    requests = [Request(cell.prompt, cell.output)] * cell.requests
    served = simulate(requests, times, Limits(sequences=options.seats, plans_ahead=True))
    return float(served.e2e_s.max())


def plan_table(results: Results, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[str]:
    """Tokens/s that the plan expects, and the measured ones over them."""
    yield f"{'cell':<18}{'plan':>12}" + "".join(f"{f'{name}/plan':>12}" for name in options.engine)
    for cell in cells:
        planned = planned_s(cell, options)
        measured = [results.median(name, cell) for name in options.engine]
        shares = "".join(f"{f'{planned / seconds:.3f}' if seconds else '–':>12}" for seconds in measured)
        yield f"{','.join(map(str, cell)):<18}{cell.tokens / planned:>12,.0f}{shares}"


def floors(results: Results, cells: Sequence[Cell], options: argparse.Namespace) -> dict[Cell, float]:
    """Fewest seconds in which this machine can compute each cell; empty for codes, and before it is measured."""
    if options.quantization or not results.of("machine"):
        return {}
    machine = results.of("machine")[0]
    value_bytes = 4 if options.dtype == "float32" else 2
    costs = ModelCosts(config_from_hf(options.raw, "config"), value_bytes, value_bytes)
    is_gpu = options.device != "cpu" and torch.cuda.is_available()
    gpus = gpus_of(options) if is_gpu else 1  # processes on one CPU share its ceilings
    ceilings = Machine(gpus * machine["bytes_per_s"], gpus * machine["flops_per_s"])
    return {cell: costs.run_floor_s(*cell, ceilings, seats=options.seats) for cell in cells}


def table(results: Results, cells: Sequence[Cell], engines: Sequence[str], floor_s: dict[Cell, float]) -> Iterator[str]:
    """Speed of each engine and its share of the floor's, and the step times of the reference engine."""
    yield (
        f"{'cell':<18}{'floor':>10}" + "".join(f"{name:>17}" for name in engines) + "  ours/vllm  ours ms/step, decode"
    )
    for cell in cells:
        floor = floor_s.get(cell)
        row = f"{','.join(map(str, cell)):<18}{cell.tokens / floor if floor else float('nan'):>10,.0f}"
        for name in engines:
            seconds = results.median(name, cell)
            share = f" {floor / seconds:4.0%}" if floor and seconds else ""
            row += f"{f'{cell.tokens / seconds:,.0f}' if seconds else '–':>{17 - len(share)}}{share}"
        ratio = ratio_of(results, cell) if {"ours", "vllm"} <= set(engines) else None
        steps = [results.median("ours", cell, key) for key in ("step_ms", "decode_step_ms")]
        row += f"{f'{ratio:.3f}' if ratio else '–':>11}  "
        yield row + ", ".join(f"{value:.2f}" if value else "–" for value in steps)


def energy_table(results: Results, cells: Sequence[Cell], engines: Sequence[str]) -> Iterator[str]:
    """Millijoules of each engine for a token, and those of the reference engine over vLLM's."""
    yield f"{'cell':<18}" + "".join(f"{name:>12}" for name in engines) + "  mJ/token; ours/vllm"
    for cell in cells:
        joules = [results.median(name, cell, "joules") for name in engines]
        row = "".join(f"{f'{each / cell.tokens * 1e3:.1f}' if each else '–':>12}" for each in joules)
        ratio = joules_ratio(results, cell)
        yield f"{','.join(map(str, cell)):<18}{row}  {f'{ratio:.3f}' if ratio else '–'}"


def ratio_of(results: Results, cell: Cell) -> float | None:
    """Speed of the reference engine over vLLM's."""
    ours_s, vllm_s = results.median("ours", cell), results.median("vllm", cell)
    return vllm_s / ours_s if ours_s and vllm_s else None


def joules_ratio(results: Results, cell: Cell) -> float | None:
    """Joules of the reference engine over vLLM's."""
    ours_j, vllm_j = (results.median(name, cell, "joules") for name in ("ours", "vllm"))
    return ours_j / vllm_j if ours_j and vllm_j else None


def checkpoint_of(options: argparse.Namespace) -> Path:
    """The folder of the checkpoint, which is written if it is missing."""
    model = hashlib.sha256(json.dumps([options.raw, options.quantization]).encode()).hexdigest()[:8]
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    folder = options.checkpoints / model
    write_checkpoint(folder, options.raw, options.quantization, device)
    print(f"{folder}: {time.perf_counter() - began:.0f} s to write", flush=True)
    torch.cuda.empty_cache()
    return folder


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=["ours", "vllm"])
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "bakeoff-gpu-offline.jsonl"))
    parser.add_argument("--cells", nargs="+", default=[], help="such as 1,128,256; default: the grid with the bars")
    parser.add_argument(
        "--checkpoints", type=Path, default=Path(tempfile.gettempdir(), "bakeoff-gpu-checkpoints"),
        help="folder for the models, which stay there",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--least-s", type=float, default=3.0,
        help="of a measurement, which has several runs if one is shorter: the counter of joules advances every 0.1 s",
    )  # fmt: skip
    parser.add_argument("--budget-s", type=float, default=540.0, help="of this call")
    parser.add_argument("--start-s", type=float, default=60.0, help="least time left to start an engine")
    parser.add_argument("--model", choices=MODELS, default=DEFAULT_MODEL, help="whose shapes (default: %(default)s)")
    parser.add_argument("--config", type=Path, help="config.json of another model")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that divide each layer")
    parser.add_argument("--pipeline-parallel", type=int, default=1, metavar="N", help="GPUs that divide the layers")
    parser.add_argument("--expert-parallel", action="store_true", help="--tensor-parallel's GPUs have whole experts")
    parser.add_argument(
        "--plan",
        choices=sorted(gpu_table()),
        metavar="GPU",
        help="compare with bakeoff plan for this GPU, such as h200",
    )
    parser.add_argument("--quantization", choices=list(QUANTISED_GOALS), help="of the weights of ours and vLLM")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seats", type=int, default=256, help="sequences at the same time, of ours and vLLM")
    parser.add_argument("--step-tokens", type=int, default=8192, help="most tokens of a step, of ours and vLLM")
    parser.add_argument("--memory", type=float, default=0.85, help="share of the GPU's memory, of ours and vLLM")
    for name in ENGINES:
        parser.add_argument(f"--{name}-options", metavar="JSON", help=f"further settings of {name}")
    options = parser.parse_args(arguments)
    options.raw = json.loads(options.config.read_text(encoding="utf-8")) if options.config else shape_of(options.model)
    if gpus_of(options) > 1 and "hf" in options.engine:
        parser.error("Transformers runs on one GPU here; leave hf out of --engine")
    if options.plan and (options.pipeline_parallel > 1 or options.expert_parallel or options.dtype != "bfloat16"):
        parser.error("bakeoff plan knows tensor parallelism in bf16 only here; leave --plan out")
    if min(options.tensor_parallel, options.pipeline_parallel) < 1:
        parser.error("--tensor-parallel and --pipeline-parallel are at least 1")
    return options


def main() -> None:
    options = parse(None)
    goals = DIVIDED_GOALS if gpus_of(options) > 1 else QUANTISED_GOALS.get(options.quantization, GOALS)
    cells = [Cell(*map(int, text.split(","))) for text in " ".join(options.cells).split()] or list(goals)
    results = Results(options.out, {name: setup_of(name, options) for name in (*ENGINES, "machine")})
    is_finished = run(options, cells, results, checkpoint_of(options))
    print(*table(results, cells, options.engine, floors(results, cells, options)), sep="\n", flush=True)
    print(*energy_table(results, cells, options.engine), sep="\n", flush=True)
    if options.plan:
        print(*plan_table(results, cells, options), sep="\n", flush=True)
    if not is_finished:
        print("unfinished: the same command goes on from here")
        sys.exit(UNFINISHED)
    judged_cells = [cell for cell in cells if cell in goals and {"ours", "vllm"} <= set(options.engine)]
    bars = Bars()
    for cell in judged_cells:
        ratio = ratio_of(results, cell) or 0.0  # one of them failed
        name = "_".join(map(str, cell))
        bars.add(f"over_vllm_at_{name}", ratio, ">=", goals[cell])
        joules = joules_ratio(results, cell)
        if joules is not None and cell.output > 1:
            bars.add(f"joules_over_vllm_at_{name}", joules, "<=", 1.08 if cell.requests == 1 else 1.0)
        vllm_s = results.median("vllm", cell)
        if options.plan and vllm_s:
            bars.add(f"plan_error_at_{name}", abs(planned_s(cell, options) / vllm_s - 1), "<=", PLAN_ERROR)
    if judged_cells:
        bars.finish()


if __name__ == "__main__":
    main()

"""The reference engine beside real vLLM and Transformers on one GPU, without HTTP. Llama-3.1-8B shapes, random weights.

Cells are (requests, prompt tokens, output tokens): bf16, greedy, exact lengths, the same random prompts, prefix caching
off. A cell with one output token is a prefill; its speed is in prompt tokens. Each engine has a process of its own,
which warms every cell up by one whole run of it. The floor is what `reference_engine.models.costs` counts at the
bandwidth and the matrix products that are measured here first.

With ``--quantization`` the weights of both have fewer bits, but for embedding and head: int4 in groups of 128, and fp8
with a scale for each output and token. vLLM gets them as a compressed-tensors config, so that it picks its own kernels.

A call ends when ``--budget-s`` is over. What it measured is in ``--out``; the same command goes on from there, and
measures ours again when its code has changed.
"""

import argparse
import hashlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bars import Bars
from benchmarks.gpu.sides.side import OutOfTimeError, Side, SideEndedError

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "bfloat16",
}  # fmt: skip
ROOT = Path(__file__).parents[2]
ENGINES = ("ours", "vllm", "hf")
UNFINISHED = 3  # exit status


class Cell(NamedTuple):
    """Requests that are all there at once, and the tokens of each."""

    requests: int
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        """What counts as speed: output tokens, or prompt tokens where there is but one output token."""
        return self.requests * (self.output if self.output > 1 else self.prompt)

    def prompts(self, repeat: int, vocab_size: int) -> list[list[int]]:
        """Random token ids, the same for every engine."""
        rng = random.Random(f"{self} {repeat}")
        return [[rng.randrange(vocab_size) for _ in range(self.prompt)] for _ in range(self.requests)]


GOALS = {
    Cell(1, 128, 256): 1.15, Cell(8, 128, 256): 1.10, Cell(32, 1024, 256): 1.00, Cell(64, 1024, 256): 1.05,
    Cell(256, 1024, 128): 1.05, Cell(1000, 220, 200): 1.05, Cell(16, 8000, 1): 0.97,
}  # fmt: skip
QUANTISED_GOALS = {
    "int4": {Cell(1, 128, 256): 1.6, Cell(8, 128, 256): 1.15, Cell(16, 128, 256): 1.15, Cell(64, 1024, 128): 0.95},
    "fp8": {
        Cell(1, 128, 256): 1.2, Cell(8, 128, 256): 1.1, Cell(64, 1024, 128): 1.1, Cell(1000, 220, 200): 1.0,
        Cell(16, 8000, 1): 1.0,
    },
}  # fmt: skip


def options_for(engine: str, quantization: str | None) -> dict[str, Any]:
    """What makes an engine load random weights in fewer bits."""
    if engine == "ours":
        return {"quantization": quantization} if quantization else {}
    if engine != "vllm" or not quantization:
        return {}
    from reference_engine.quantization.formats.base import IntegerScheme  # noqa: PLC0415  (imports torch)
    from reference_engine.quantization.formats.registry import format_for, integer_format  # noqa: PLC0415
    from reference_engine.quantization.formats.schemes import Fp8Scheme  # noqa: PLC0415

    is_int4 = quantization == "int4"
    layout = integer_format("pack-quantized", IntegerScheme(4, 128)) if is_int4 else format_for(Fp8Scheme())
    return {"hf_overrides": {"quantization_config": layout.config()}}


class Results:
    """The lines of a file; those of another model, dtype or engine option are not looked at.

    Args:
        path: JSON lines; need not exist.
        setups: of each engine, what it was measured with.
    """

    def __init__(self, path: Path, setups: dict[str, str]) -> None:
        self._path, self._setups = path, setups
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        *lines, torn = text.split("\n")
        if torn:
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self._records: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, engine: str, cell: Cell | None, **values: Any) -> None:  # noqa: ANN401  (JSON)
        """Keeps one measurement, of the machine without a cell."""
        record = {"engine": engine, "setup": self._setups[engine], "cell": cell and list(cell), **values}
        self._records.append(record)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, engine: str, cell: Cell | None = None) -> list[dict[str, Any]]:
        """What was measured of a cell."""
        wanted = (engine, self._setups[engine], cell and list(cell))
        return [r for r in self._records if (r["engine"], r["setup"], r["cell"]) == wanted]

    def median(self, engine: str, cell: Cell, key: str = "seconds") -> float | None:
        """Of the repeats; None if there are none."""
        values = [record[key] for record in self.of(engine, cell) if record.get(key) is not None]
        return statistics.median(values) if values else None

    def missing(self, engine: str, cells: Sequence[Cell], repeats: int) -> list[tuple[Cell, int]]:
        """Cells and numbers of the repeats that are to be measured; a cell that failed is done."""
        return [
            (cell, repeat)
            for cell in cells
            if not any("error" in record for record in self.of(engine, cell))
            for repeat in range(len(self.of(engine, cell)), repeats)
        ]


def options_of(engine: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the engine's process is told."""
    return {
        "device": options.device, "dtype": options.dtype, "memory": options.memory, "seats": options.seats,
        "max_model_len": min(8192, options.raw["max_position_embeddings"]), "seconds": 2.0,
        "engine": options_for(engine, options.quantization)
        | json.loads(getattr(options, f"{engine}_options", None) or "{}"),
    }  # fmt: skip


def setup_of(engine: str, options: argparse.Namespace) -> str:
    """A digest of all that an engine was measured with; of ours its code, too, so that a change is measured again."""
    digest = hashlib.sha256(json.dumps([options.raw, options_of(engine, options)]).encode())
    for path in sorted(ROOT.glob("reference_engine/**/*")) if engine == "ours" else ():
        if path.suffix in {".py", ".cpp", ".h", ".cu"}:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def measure(engine: str, side: Side, missing: Sequence[tuple[Cell, int]], results: Results, vocab_size: int) -> None:
    """Measures until all is there or a cell fails, after which the process is not to be used."""
    warm = None
    for cell, repeat in missing:
        answer: dict[str, Any] = {}
        if cell != warm:
            # Transformers compiles nothing, and takes minutes for a large cell.
            answer = side.ask(cell.prompts(-1, vocab_size), min(cell.output, 4) if engine == "hf" else cell.output)
        if "error" not in answer:
            warm, answer = cell, side.ask(cell.prompts(repeat, vocab_size), cell.output)
        results.add(engine, cell, repeat=repeat, **answer)
        if "error" in answer:
            print(f"{engine} {tuple(cell)}: {answer['error']}", flush=True)
            return
        print(f"{engine} {tuple(cell)}: {cell.tokens / answer['seconds']:,.0f} tok/s {answer}", flush=True)


def run(options: argparse.Namespace, cells: Sequence[Cell], results: Results, folder: Path) -> bool:
    """Measures what is missing; whether all is there now."""
    deadline_s = time.monotonic() + options.budget_s
    log = options.out.with_suffix(".log")
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
                    measure(engine, side, missing, results, options.raw["vocab_size"])
    except OutOfTimeError:
        return False
    except SideEndedError as error:
        print(error, flush=True)
        return False
    return True


def floors(results: Results, cells: Sequence[Cell], options: argparse.Namespace) -> dict[Cell, float]:
    """Seconds below which this machine cannot compute each cell; empty without torch or before it is measured."""
    if not results.of("machine"):
        return {}
    from reference_engine.models.config_readers import config_from_hf  # noqa: PLC0415
    from reference_engine.models.costs import Machine, ModelCosts  # noqa: PLC0415  (imports torch)

    machine = results.of("machine")[0]
    bytes_each = 4 if options.dtype == "float32" else 2
    costs = ModelCosts(config_from_hf(options.raw, "config"), bytes_each, bytes_each)
    at_most = Machine(machine["bytes_per_s"], machine["flops_per_s"])
    return {cell: costs.run_floor_s(*cell, at_most, seats=options.seats) for cell in cells}


def table(results: Results, cells: Sequence[Cell], engines: Sequence[str], floor_s: dict[Cell, float]) -> Iterator[str]:
    """Speed of each engine and its share of the floor's, and what a step of ours takes."""
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


def ratio_of(results: Results, cell: Cell) -> float | None:
    """Our speed over vLLM's."""
    ours, theirs = results.median("ours", cell), results.median("vllm", cell)
    return theirs / ours if ours and theirs else None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=["ours", "vllm"])
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "bakeoff-gpu-offline.jsonl"))
    parser.add_argument("--cells", nargs="+", default=[], help="such as 1,128,256; default: the grid with the bars")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=540.0, help="of this call")
    parser.add_argument("--start-s", type=float, default=60.0, help="no engine is started with less time than this")
    parser.add_argument("--config", type=Path, help="config.json of another model")
    parser.add_argument("--quantization", choices=list(QUANTISED_GOALS), help="of the weights of ours and vLLM")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seats", type=int, default=256, help="sequences at the same time, of ours and vLLM")
    parser.add_argument("--memory", type=float, default=0.85, help="share of the GPU's memory, of ours and vLLM")
    for name in ENGINES:
        parser.add_argument(f"--{name}-options", metavar="JSON", help=f"further settings of {name}")
    options = parser.parse_args(arguments)
    options.raw = json.loads(options.config.read_text(encoding="utf-8")) if options.config else LLAMA_8B
    return options


def main() -> None:
    options = parse(None)
    goals = QUANTISED_GOALS.get(options.quantization, GOALS)
    cells = [Cell(*map(int, text.split(","))) for text in " ".join(options.cells).split()] or list(goals)
    results = Results(options.out, {name: setup_of(name, options) for name in (*ENGINES, "machine")})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(options.raw), encoding="utf-8")
        is_finished = run(options, cells, results, folder)
    print(*table(results, cells, options.engine, floors(results, cells, options)), sep="\n", flush=True)
    if not is_finished:
        print("unfinished: the same command goes on from here")
        sys.exit(UNFINISHED)
    judged = [cell for cell in cells if cell in goals and {"ours", "vllm"} <= set(options.engine)]
    bars = Bars()
    for cell in judged:
        ratio = ratio_of(results, cell) or 0.0  # one of them failed
        bars.add(f"over_vllm_at_{'_'.join(map(str, cell))}", ratio, ">=", goals[cell])
    if judged:
        bars.finish()


if __name__ == "__main__":
    main()

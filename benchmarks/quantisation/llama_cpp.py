"""The reference engine beside llama.cpp on the same GGUF files, both served, on a CPU.

Run by ``make bench-quantisation``; needs ``bakeoff engines install llama-cpp`` before. Writes the model as Q4_0, Q4_1
and Q8_0 and runs an experiment with each: 1 and 8 streams, prompts and answers of 64 tokens. The figures are output
tokens/s, the centres of intervals over the repeats.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from bakeoff import results
from bakeoff.reference_engine.core.quantization_names import GgufName
from bakeoff.reference_engine.tools.gguf_export import write_gguf
from benchmarks.bars import Bars, model_argument
from benchmarks.experiments import measured

TYPES: tuple[GgufName, ...] = ("gguf-q4_0", "gguf-q4_1", "gguf-q8_0")
GOALS = {1: 1.0, 8: 1.5}
"""By streams: least ratio of output tokens/s to llama.cpp's."""
REFERENCE, LLAMA_CPP = "reference", "llama.cpp"
EXPERIMENT = """
name = "llama-cpp-{kind}"
repeats = {repeats}
seed = 3

[model]
name = "smollm2-{kind}"
path = "{file}"
tokenizer = "{tokenizer}"

[spec]
max_model_len = 1024
max_num_seqs = 8
enable_prefix_caching = false

[[engines]]
adapter = "reference"
label = "{reference}"
spec = {{ dtype = "bfloat16" }}

[[engines]]
adapter = "llama_cpp"
label = "{llama_cpp}"

[workload]
name = "random"
options = {{ input_tokens = 64, output_tokens = 64 }}

[[loads]]
concurrency = 1

[[loads]]
concurrency = 8

[trial]
ramp_s = 2
duration_s = 8
min_requests = 6

[quality]
samples = 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    options = parser.parse_args()
    bars = Bars()
    print(f"{'weights':<10}{'streams':>8}{REFERENCE:>12}{LLAMA_CPP:>12}{'ratio':>8}")
    for kind in options.types:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.gguf")
            write_gguf(Path(options.model), file, kind, say=lambda _: None)
            experiment = Path(folder, "experiment.toml")
            text = EXPERIMENT.format(
                kind=kind,
                repeats=options.repeats,
                file=file,
                tokenizer=options.model,
                reference=REFERENCE,
                llama_cpp=LLAMA_CPP,
            )
            experiment.write_text(text, encoding="utf-8")
            run = results.load(measured(experiment, options.out))
        intervals = {(cell.engine, cell.load): cell.intervals.get("output_tokens_per_s") for cell in run.cells}
        for streams, goal in GOALS.items():
            reference, llama_cpp = (intervals[engine, f"c={streams}"] for engine in (REFERENCE, LLAMA_CPP))
            if reference is None or llama_cpp is None:
                sys.exit(f"{kind}, {streams} streams: an engine has no valid trial; run it again")
            ratio = reference.centre / llama_cpp.centre
            centres = f"{reference.centre:>12.1f}{llama_cpp.centre:>12.1f}"
            print(f"{kind:<10}{streams:>8}{centres}{ratio:>8.2f}", flush=True)
            bars.add(f"{kind}_{streams}_streams_over_llama_cpp", ratio, ">=", goal)
    bars.finish()


if __name__ == "__main__":
    main()

"""Quality cost of each method of quantisation: perplexity, KL divergence and token match against the plain model.

    python -m benchmarks.quantisation.quality [--tokens 20480] [--methods int4 gptq] [--keep FOLDER] [--trained FOLDER]

The text is Python's own reference (the topics of ``help()``), which every Python has: methods are calibrated on every
second topic, and all are measured on the others. With --keep, checkpoints and evaluations stay, and the next call adds
what is missing. --trained is the model after ``bakeoff models distil MODEL MODEL --rounded-to int4``.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from benchmarks.bars import Bars, model_argument

_METHODS = {
    "int8": "--method int8",
    "int8-zp": "--method int8-zp",
    "fp8": "--method fp8",
    "w8a8": "--method w8a8",
    "int4": "--method int4",
    "int4-zp": "--method int4-zp",
    "nf4": "--method nf4",
    "gptq": "--method gptq",
    "gptq act-order": "--method gptq --act-order",
    "awq": "--method awq",
    "int4 budget": "--method int4",
    "int4 trained": "--method int4",
}
_BUDGET, _TRAINED = list(_METHODS)[-2:]
_BUDGET_OVER_INT4 = 1.15
"""Bytes of `_BUDGET`, relative to those of int4."""
_SMALL_COST = 0.005
"""Increase of perplexity, relative to the plain model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--tokens", type=int, default=20_480, help="of the text to measure on")
    parser.add_argument("--calibration-tokens", type=int, default=32_768)
    parser.add_argument("--methods", nargs="+", choices=_METHODS, help="default: all, int4 trained with --trained only")
    parser.add_argument("--trained", type=Path, help="checkpoint that was trained to be rounded to int4")
    parser.add_argument("--keep", type=Path, help="folder for checkpoints and evaluations")
    options = parser.parse_args()
    options.methods = options.methods or [name for name in _METHODS if name != _TRAINED or options.trained]
    with kept_folder(options.keep) as folder:
        texts = _write_texts(folder)
        rows = {name: _evaluate(name, options, folder, *texts) for name in options.methods}
    perplexity = rows[options.methods[0]]["reference_perplexity"]["centre"]
    print(f"\nplain: {_megabytes(Path(options.model)):.1f} MB, perplexity {perplexity:.2f}")
    print(f"{'method':<15}{'MB':>8}{'perplexity':>28}{'KL, nats':>12}{'token match':>13}")
    for name, row in rows.items():
        ratio = row["perplexity_ratio"]
        interval = f"{_percent(ratio['centre'])} [{_percent(ratio['low'])}, {_percent(ratio['high'])}]"
        print(
            f"{name:<15}{row['megabytes']:>8.1f}{interval:>28}{row['kl_nats_per_token']['centre']:>12.4f}"
            f"{100 * row['token_match']['centre']:>11.1f} %"
        )
    _judge({name: row["perplexity_ratio"]["centre"] - 1 for name, row in rows.items()})


@contextlib.contextmanager
def kept_folder(keep: Path | None) -> Iterator[Path]:
    """Make and yield this folder; a temporary one for None."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _write_texts(folder: Path) -> tuple[Path, Path]:
    """Write the texts to calibrate on and to measure on; returns their files."""
    names = sorted(topics)
    files = folder / "calibration.txt", folder / "held.txt"
    for first, file in enumerate(files):
        file.write_text("\n\n".join(topics[name] for name in names[first::2]), encoding="utf-8")
    return files


def _evaluate(name: str, options: argparse.Namespace, folder: Path, calibration: Path, held: Path) -> dict[str, Any]:
    target, result = folder / name.replace(" ", "-"), folder / f"{name.replace(' ', '-')}.json"
    if not (target / "config.json").exists():
        arguments = [*_METHODS[name].split(), "--text", calibration, "--calibration-tokens", options.calibration_tokens]
        if name == _BUDGET:
            arguments += ["--budget-mb", _BUDGET_OVER_INT4 * _megabytes(folder / "int4")]
        source = options.trained if name == _TRAINED else options.model
        bakeoff_models(["quantize", source, *arguments, "--out", target])
    if not result.exists():
        arguments = ["eval", target, "--reference", options.model, "--text", held, "--max-tokens", options.tokens]
        result.write_bytes(bakeoff_models([*arguments, "--dtype", "float32", "--json"]))
    return {**json.loads(result.read_bytes()), "megabytes": _megabytes(target)}


def bakeoff_models(arguments: Sequence[object]) -> bytes:
    """Run ``bakeoff models`` with these arguments; returns its stdout."""
    argv = [sys.executable, "-m", "bakeoff", "models", *map(str, arguments)]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f}%"


def _judge(costs: dict[str, float]) -> None:
    """Add the bars; `costs` are increases of perplexity by method."""
    bars = Bars()
    for name in ("int8", "int8-zp", "fp8", "w8a8"):
        if name in costs:
            bars.add(f"cost_{name}", costs[name], "<=", _SMALL_COST)
    if "int4" in costs:
        for name, share in (("gptq", 0.5), ("awq", 0.5), ("nf4", 1.0), (_BUDGET, 1.0), (_TRAINED, 1.0)):
            if name in costs:
                bars.add(f"cost_{name}_over_int4", costs[name] / costs["int4"], "<=", share)
    bars.finish()


if __name__ == "__main__":
    main()

"""Makes the model on which `benchmarks.quantisation.quality` compares methods, best on a GPU.

    python -m benchmarks.quality_model --model FOLDER --prompts FILE --out FOLDER

SmolLM2's shipped weights come from a 4-bit file with at most 16 values for each 32 weights, and its width of 576 is no
multiple of 128. So the script adds noise to the weights, distils the original model into the noisy one, and widens the
result with zeros from 576 to 768 columns and from 9 to 12 heads. The wide model differs from the narrow one by rounding
only. ``--prompts`` is a file with one prompt per line, such as `benchmarks.drafts` writes. The script writes ``narrow``
and ``wide`` to ``--out``.
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from bakeoff.reference_engine.loading.safetensors import SafetensorsDirectory
from bakeoff.reference_engine.tools.checkpoint_folder import copy_tokenizer, new_checkpoint, write_json, write_weights
from bakeoff.reference_engine.tools.distillation import Distillation, distil

NOISE = 0.05
"""Standard deviation, relative to the root mean square of a row: about half of what rounding to 4 bits changes."""
WIDTH = 768
HEADS_PER_KV_HEAD = 3
MAX_DIFFERENCE = 1e-3
"""Largest accepted difference of float32 logits, which reach about 20."""


def add_noise(source: Path, target: Path) -> None:
    """Write a copy of a checkpoint with noise on all matrices but the embedding."""
    tensors = SafetensorsDirectory(source)
    generator = torch.Generator().manual_seed(0)
    weights = {name: tensors.get(name) for name in tensors.names()}
    for name, weight in weights.items():
        if "layers" in name and weight.dim() == 2:
            rms = weight.float().square().mean(dim=1, keepdim=True).sqrt()
            noise = torch.randn(weight.shape, generator=generator) * rms * NOISE
            weights[name] = (weight.float() + noise).to(weight.dtype)
    with new_checkpoint(target) as folder:
        write_weights(folder, weights)
        copy_tokenizer(source, folder)
        shutil.copyfile(source / "config.json", folder / "config.json")


def widen(source: Path, target: Path) -> None:
    """Write a Llama checkpoint with `WIDTH` columns and the heads that fit into them; all new weights are zero.

    A norm divides by the root mean square of its input, which the new zeros reduce by a factor of √(old / new width).
    The norms' weights are scaled by the same factor to compensate.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    ratio = config["hidden_size"] / WIDTH
    key_rows = WIDTH // HEADS_PER_KV_HEAD
    shapes = {  # None: unchanged
        "embed_tokens": (None, WIDTH), "q_proj": (WIDTH, WIDTH), "k_proj": (key_rows, WIDTH),
        "v_proj": (key_rows, WIDTH), "o_proj": (WIDTH, WIDTH), "gate_proj": (None, WIDTH), "up_proj": (None, WIDTH),
        "down_proj": (WIDTH, None),
    }  # fmt: skip
    tensors = SafetensorsDirectory(source)
    weights: dict[str, torch.Tensor] = {}
    for name in tensors.names():
        weight = tensors.get(name)
        shape = shapes.get(name.split(".")[-2], (WIDTH,))
        if weight.dim() == 1:
            weight = weight.float() * math.sqrt(ratio)
        wide = weight.new_zeros([new or old for new, old in zip(shape, weight.shape, strict=True)])
        wide[tuple(map(slice, weight.shape))] = weight
        weights[name] = wide
    heads = WIDTH // config["head_dim"]
    config |= {
        "hidden_size": WIDTH,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // HEADS_PER_KV_HEAD,
        "rms_norm_eps": config["rms_norm_eps"] * ratio,
    }
    with new_checkpoint(target) as folder:
        write_weights(folder, weights)
        copy_tokenizer(source, folder)
        write_json(folder / "config.json", config)


@torch.inference_mode()
def largest_difference(narrow: Path, wide: Path) -> float:
    """The largest difference of the two models' float32 logits, for a few tokens."""
    tokens = torch.arange(1000, 1256)[None]
    logits = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits for folder in (narrow, wide)
    ]
    return (logits[0] - logits[1]).abs().max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint of SmolLM2-135M")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--text-tokens", type=int, default=1_000_000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    noisy, narrow, wide = (options.out / name for name in ("noisy", "narrow", "wide"))
    if not noisy.exists():
        add_noise(options.model, noisy)
    settings = Distillation(
        steps=options.steps,
        batch_tokens=options.batch_tokens,
        learning_rate=options.learning_rate,
        text_tokens=options.text_tokens,
    )
    if not (narrow / "config.json").exists():
        distil(
            options.model, noisy, narrow, settings,
            text=options.prompts, device=options.device, say=lambda line: print(line, flush=True),
        )  # fmt: skip
    widen(narrow, wide)
    difference = largest_difference(narrow, wide)
    print(f"wrote {wide}: logits differ from those of {narrow} by at most {difference:.1e}")
    if difference > MAX_DIFFERENCE:
        raise SystemExit("the wide model computes something else")


if __name__ == "__main__":
    main()

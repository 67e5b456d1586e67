"""A random Llama of a few wide layers, whose step a GPU's memory is bound by, not the launching of its kernels."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 2, 8192, 28672, 64, 8
_ABOUT_TOKENS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
_SPREAD = 0.02  # standard deviation of the weights


def write_wide_model(folder: Path, like: Path) -> None:
    """Make a checkpoint of 4.2 GB with the tokenizer of another; in float32 a step reads 8 GB.

    Args:
        folder: where to; it is made.
        like: a checkpoint folder of a Llama.
    """
    folder.mkdir()
    told = json.loads((like / "config.json").read_text(encoding="utf-8"))
    head_dim, vocabulary = HIDDEN // HEADS, told["vocab_size"]
    changed = {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "head_dim": head_dim,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told | changed, indent=2), encoding="utf-8")
    for name in _ABOUT_TOKENS:
        shutil.copy(like / name, folder)
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * head_dim, HIDDEN), "self_attn.v_proj": (KV_HEADS * head_dim, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": _random(vocabulary, HIDDEN), "model.norm.weight": _ones()}
    for layer in (f"model.layers.{number}" for number in range(LAYERS)):
        tensors |= {f"{layer}.{name}.weight": _random(*shape) for name, shape in shapes.items()}
        tensors |= {f"{layer}.{name}.weight": _ones() for name in ("input_layernorm", "post_attention_layernorm")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _random(*shape: int) -> torch.Tensor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (torch.randn(shape, device=device, dtype=torch.bfloat16) * _SPREAD).cpu()


def _ones() -> torch.Tensor:
    return torch.ones(HIDDEN, dtype=torch.bfloat16)

"""Shapes of published models as config.json, for checkpoints of random weights."""

from typing import Any

from bakeoff.harness.sizing.model import known_models

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
MODELS = tuple(name for name, raw in known_models().items() if raw["model_type"] in _ARCHITECTURES)


def shape_of(name: str) -> dict[str, Any]:
    """config.json of one of ``MODELS``, with what its engines need beyond `bakeoff plan`'s facts."""
    raw = dict(known_models()[name])
    common = {
        "architectures": [_ARCHITECTURES[raw["model_type"]]], "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
        "head_dim": raw["hidden_size"] // raw["num_attention_heads"], "bos_token_id": raw["vocab_size"] - 256,
        "eos_token_id": raw["vocab_size"] - 255, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return common | raw

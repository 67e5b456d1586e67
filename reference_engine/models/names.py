"""Names of weights in Hugging Face's checkpoints."""

ENDS = ("model.embed_tokens.weight", "lm_head.weight")
"""Embedding and output matrix."""
ROUTERS = (".gate.weight", ".router.weight", ".shared_expert_gate.weight")
"""Endings of the names of routers, which are kept in float32."""
CORRECTION = "e_score_correction_bias"
"""A router's correction of the shares by which experts are chosen (DeepSeek-V3)."""
ROUTER_VECTORS = (".router.bias", f".gate.{CORRECTION}")
"""Endings of the names of what is added in routers; float32, too."""
LLAMA_PARTS = ("gate_proj", "up_proj", "down_proj")
"""An expert's, or a feed-forward network's, gate, up and down matrices."""


def layer_prefix(index: int) -> str:
    """Prefix of the names of a layer's weights."""
    return f"model.layers.{index}."

"""Names of weights in Hugging Face's checkpoints."""

ENDS = ("model.embed_tokens.weight", "lm_head.weight")
"""Embedding and output matrix."""
ROUTER = ".gate.weight"
"""Ending of the names of routers, which are kept in float32."""
LLAMA_PARTS = ("gate_proj", "up_proj", "down_proj")
"""An expert's, or a feed-forward network's, gate, up and down matrices."""


def layer_prefix(index: int) -> str:
    """Prefix of the names of a layer's weights."""
    return f"model.layers.{index}."

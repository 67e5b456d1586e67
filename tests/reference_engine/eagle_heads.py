"""Tiny EAGLE-3 heads on disk."""

import dataclasses

import torch

from bakeoff.reference_engine.loading.safetensors import read_config
from bakeoff.reference_engine.models.eagle import head_shapes
from bakeoff.reference_engine.tools.head_checkpoint import write_head
from bakeoff.reference_engine.tools.head_training import head_config


def random_head(directory, checkpoint_dir, *, tokens=None, scale=0.3, drop=(), reshape=(), **changes):
    """A head with normal weights for a checkpoint; `tokens` are those that it can propose.

    `drop` names tensors to leave out, `reshape` tensors to make a row longer, `changes` fields of its config.
    """
    directory.mkdir(exist_ok=True)
    config = head_config(read_config(checkpoint_dir), None if tokens is None else len(tokens))
    config = dataclasses.replace(config, **changes)
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else scale * torch.randn(shape, generator=generator)
        for name, shape in head_shapes(config, len(config.taps or ())).items()
        if name != "d2t" and name not in drop
    }
    tensors |= {name: torch.cat([tensors[name], tensors[name][:1]]) for name in reshape}
    write_head(directory, config, tensors, tokens=tokens, model=checkpoint_dir, num_tokens=3)
    return directory

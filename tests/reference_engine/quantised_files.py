"""Quantised checkpoints written in NumPy by the public definition of each format, without our encoders."""

import functools
import json
import shutil

import numpy as np
import torch
from safetensors.torch import save_file

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.models.shapes import weight_shapes
from bakeoff.reference_engine.offline import LLM

SETTINGS = {"num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32, "threads": 1, "dtype": "float32"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
TINY = {
    "model_type": "llama", "vocab_size": 266, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
}  # fmt: skip


class Drawn:
    """Random codes of a weight, and the weight that they stand for."""

    def __init__(self, rng, rows, columns, *, bits=4, group=32, symmetric=False, act_order=False, low_zero=0):
        groups, self.bits, self.symmetric = columns // group, bits, symmetric
        self.codes = rng.integers(0, 1 << bits, (rows, columns))
        self.scales = rng.uniform(0.02, 0.08, (rows, groups)).astype(np.float16) * np.float16(16 / (1 << bits))
        self.middle = 1 << (bits - 1)
        self.zeros = rng.integers(low_zero, 1 << bits, (rows, groups))
        if symmetric:
            self.zeros[:] = self.middle
        self.group_of = np.arange(columns) // group
        if act_order:
            self.group_of = rng.permutation(self.group_of)
        steps = self.codes - self.zeros[:, self.group_of]
        self.weight = torch.from_numpy((steps * self.scales[:, self.group_of].astype(np.float64)).astype(np.float32))


def words(codes, bits, nibbles=None):
    """Columns of [rows, columns] in 32-bit words [rows, words]; the place of each in its word may be given."""
    count = 32 // bits
    packed = np.zeros((codes.shape[0], -(-codes.shape[1] // count)), dtype=np.uint32)
    for column in range(codes.shape[1]):
        place = column % count if nibbles is None else nibbles.index(column % count)
        packed[:, column // count] |= codes[:, column].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(packed.view(np.int32))


def gptq(drawn, version="gptq"):
    stored_zeros = drawn.zeros - 1 if version == "gptq" else drawn.zeros
    return {
        "qweight": words(drawn.codes, drawn.bits).t().contiguous(),
        "qzeros": words(stored_zeros.T, drawn.bits),
        "scales": torch.from_numpy(drawn.scales.T.copy()),
        "g_idx": torch.from_numpy(drawn.group_of.astype(np.int32)),
    }


def awq(drawn):
    return {
        "qweight": words(drawn.codes.T, 4, AWQ_ORDER),
        "qzeros": words(drawn.zeros.T, 4, AWQ_ORDER),
        "scales": torch.from_numpy(drawn.scales.T.copy()),
    }


def pack_quantized(drawn):
    tensors = {
        "weight_packed": words(drawn.codes, drawn.bits),
        "weight_shape": torch.tensor(drawn.codes.shape),
        "weight_scale": torch.from_numpy(drawn.scales),
    }
    if not drawn.symmetric:
        tensors["weight_zero_point"] = words(drawn.zeros.T, drawn.bits).t().contiguous()
    if (np.diff(drawn.group_of) < 0).any():
        tensors["weight_g_idx"] = torch.from_numpy(drawn.group_of.astype(np.int32))
    return tensors


def int_quantized(drawn):
    def signed(codes):
        return torch.from_numpy((codes - drawn.middle).astype(np.int8))

    tensors = {"weight": signed(drawn.codes), "weight_scale": torch.from_numpy(drawn.scales)}
    return tensors if drawn.symmetric else tensors | {"weight_zero_point": signed(drawn.zeros)}


def compressed(storage, *, ignore=("lm_head",), targets=("Linear",), **weights):
    """A `quantization_config` of compressed-tensors."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32} | weights
    group = {"targets": list(targets), "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": storage,
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
        "quantization_status": "compressed",
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
V2 = functools.partial(gptq, version="gptq_v2")

CASES = {
    "gptq": (GPTQ, {"symmetric": True}, gptq),
    "gptq of 8 bits": (GPTQ | {"bits": 8}, {"symmetric": True, "bits": 8}, gptq),
    "gptq with zero points": (GPTQ | {"sym": False}, {"low_zero": 1}, gptq),
    "gptq in act-order": (GPTQ | {"desc_act": True}, {"symmetric": True, "act_order": True}, gptq),
    "gptq by rows": (GPTQ | {"group_size": -1}, {"symmetric": True, "group": 64}, gptq),
    "gptq_v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, {"symmetric": True}, V2),
    "gptq_v2 with zero points": (GPTQ | {"sym": False, "bits": 8, "format": "gptq_v2"}, {"bits": 8}, V2),
    "awq": (AWQ, {}, awq),
    "awq by rows": (AWQ | {"group_size": -1}, {"group": 64}, awq),
    "packed": (compressed("pack-quantized"), {"symmetric": True}, pack_quantized),
    "packed with zero points": (compressed("pack-quantized", symmetric=False), {}, pack_quantized),
    "packed 8 bits": (
        compressed("pack-quantized", num_bits=8, strategy="channel", group_size=None, symmetric=False),
        {"bits": 8, "group": 64},
        pack_quantized,
    ),
    "packed in act-order": (
        compressed("pack-quantized", actorder="group"),
        {"symmetric": True, "act_order": True},
        pack_quantized,
    ),
    "bytes": (
        compressed("int-quantized", num_bits=8, strategy="channel", group_size=None),
        {"bits": 8, "group": 64, "symmetric": True},
        int_quantized,
    ),
    "bytes of 4 bits": (compressed("naive-quantized", symmetric=False), {}, int_quantized),
}  # fmt: skip
"""`quantization_config`, settings of `Drawn`, and what writes a module."""


def drawn_for(case, rows=40, columns=64):
    return Drawn(np.random.default_rng(0), rows, columns, **CASES[case][1])


def write_pair(folder, config, draw, tensors_of, *, plain=("lm_head",), raw=TINY):
    """A random tiny model, quantised, and its plain twin, whose weights are what the codes stand for.

    Args:
        config: the `quantization_config`.
        draw: rows and columns to a `Drawn`.
        tensors_of: from that to the tensors of a module.
        plain: modules that are not quantised.
    """
    rng, torch_rng = np.random.default_rng(5), torch.Generator().manual_seed(5)
    quantised, twin = {}, {}
    for name, shape in weight_shapes(config_of(raw)).items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and ".layers." in name and module not in plain:
            drawn = draw(rng, *shape)
            twin[name] = drawn.weight
            quantised |= {f"{module}.{part}": tensor for part, tensor in tensors_of(drawn).items()}
        else:
            spread = torch.randn(shape, generator=torch_rng)
            twin[name] = quantised[name] = spread * 0.3 if len(shape) == 2 else spread * 0.1 + 1
    for kind, tensors, extra in (("quantised", quantised, {"quantization_config": config}), ("twin", twin, {})):
        target = folder / kind
        target.mkdir()
        save_file(tensors, target / "model.safetensors")
        (target / "config.json").write_text(json.dumps(raw | extra))
    return folder / "quantised", folder / "twin"


def config_of(raw) -> ModelConfig:
    from bakeoff.reference_engine.models.config_readers import config_from_hf  # noqa: PLC0415 (imports every family)

    return config_from_hf(raw, "x")


def with_tokenizer(folders, source):
    """Copy the tokenizer of a checkpoint into the folders; returns them."""
    for folder in folders:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(source / name, folder / name)
    return folders


def tokens_of(path, **settings):
    """Eight greedy tokens after each of two prompts."""
    params = SamplingParams(max_tokens=8, temperature=0.0)
    answers = LLM(path, **SETTINGS | settings).generate([[5, 9, 77], list(range(3, 30))], params, ignore_eos=True)
    return [answer.completions[0].token_ids for answer in answers]

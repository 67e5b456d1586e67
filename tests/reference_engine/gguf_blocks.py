"""Random blocks of every format that GGUF files have and this engine keeps: gguf can read K formats, not write them."""

import contextlib
import itertools

import gguf
import torch

from bakeoff.reference_engine.kernels.blocks import FORMATS
from bakeoff.reference_engine.loading.gguf import open_gguf
from bakeoff.reference_engine.quantization.blocks import BlockMatrix

HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
"""Where each format has its float16; all other bytes may be anything."""
LARGEST = {
    "Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31, "Q8_0": 128,
    "Q2_K": 3 * 15, "Q3_K": 4 * 32, "Q4_K": 15 * 63, "Q5_K": 31 * 63, "Q6_K": 32 * 128,
}  # fmt: skip
"""What a float16 is multiplied by at most."""


def random_blocks(name, rows, columns, seed=0, size=1.0):
    """A matrix of weights that are about `size` at most."""
    generator = torch.Generator().manual_seed(seed)
    block_format = FORMATS[name]
    shape = (rows, columns // block_format.elements, block_format.bytes)
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    for place in HALVES[name]:
        scales = torch.randn(*shape[:2], 1, generator=generator) * size / LARGEST[name]
        blocks[..., place : place + 2] = scales.half().view(torch.uint8)
    return BlockMatrix(blocks.flatten(1), block_format)


def truth(matrix):
    """The values of the blocks according to the gguf library."""
    kind = gguf.GGMLQuantizationType[matrix.format.name]
    return torch.from_numpy(gguf.quants.dequantize(matrix.blocks.numpy(), kind))


def requantised(source, target, *kinds):
    """Write a GGUF file again, with its matrices in alternating types that gguf can write; its metadata stays."""
    reader = open_gguf(source)
    numbers = itertools.cycle(gguf.GGMLQuantizationType[kind] for kind in kinds)
    with contextlib.closing(gguf.GGUFWriter(str(target), reader.fields["general.architecture"].contents())) as writer:
        for name, field in reader.fields.items():
            if name.startswith("GGUF.") or name == "general.architecture":
                continue
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if values.ndim == 2:
                number = next(numbers)
                writer.add_tensor(tensor.name, gguf.quants.quantize(values, number), raw_dtype=number)
            else:
                writer.add_tensor(tensor.name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return target

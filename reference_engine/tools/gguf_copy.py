"""Copies a GGUF file with every tensor in one plain type, so that llama.cpp serves the weights of a checkpoint.

Metadata, tokenizer, names and llama.cpp's order of rows stay the same. Tensors of one dimension (norms and biases) are
rounded to the same type and stored as float32, the only type that llama.cpp accepts for them; so the values are
bit-identical to those of `convert_gguf` with the same `dtype`.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy.typing as npt
import torch

from bakeoff.reference_engine.core.files import check_model_path
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.gguf import dequantised, open_gguf
from bakeoff.reference_engine.tools.checkpoint_folder import whole_file

_TYPES = {
    "bfloat16": (torch.bfloat16, gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "float16": (torch.float16, gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "float32": (torch.float32, gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
_MATRIX = 2
_FILE_TYPE = "general.file_type"
_MADE_BY_THE_WRITER = ("general.architecture", "general.quantization_version")
"""The writer adds the first; the second applies to quantised files only."""


def copy_gguf(source: Path, target: Path, *, dtype: str, progress: Callable[[str], None]) -> None:
    """Writes `target` with the tensors of `source` in `dtype`; the file appears whole or not at all.

    Args:
        source: a .gguf file of any architecture.
        target: file to write; an existing one is replaced.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        progress: called with one line of text at each stage.

    Raises:
        CheckpointError: the source cannot be read, or the target is a directory.
    """
    check_model_path(source)
    if target.is_dir():
        raise CheckpointError(f"{target} is a directory; name the .gguf file to write")
    progress(f"reading {source}")
    reader = open_gguf(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as scratch:
        _write(reader, source, scratch, dtype)
    progress(f"wrote {target}")


def _write(reader: gguf.GGUFReader, source: Path, path: Path, dtype: str) -> None:
    architecture = reader.fields.get("general.architecture")
    if architecture is None:
        raise CheckpointError("GGUF metadata general.architecture is missing; fetch the file again")
    with contextlib.closing(gguf.GGUFWriter(str(path), str(architecture.contents()))) as writer:
        _add_metadata(reader, writer, _TYPES[dtype][2])
        for tensor in reader.tensors:
            _add_tensor(dequantised(tensor, source), tensor.name, writer, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _add_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, file_type: int) -> None:
    for name, field in reader.fields.items():
        if name in _MADE_BY_THE_WRITER or name.startswith("GGUF."):
            continue
        value: Any = int(file_type) if name == _FILE_TYPE else field.contents()
        if field.types[0] is gguf.GGUFValueType.ARRAY and not value:
            continue  # the writer rejects empty arrays
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    if _FILE_TYPE not in reader.fields:
        writer.add_file_type(file_type)


def _add_tensor(values: torch.Tensor, name: str, writer: gguf.GGUFWriter, dtype: str) -> None:
    torch_type, ggml_type, _ = _TYPES[dtype]
    rounded = values.to(torch_type)
    if rounded.ndim < _MATRIX:
        writer.add_tensor(name, rounded.float().numpy())
    else:
        writer.add_tensor(name, _plain(rounded), raw_shape=rounded.shape, raw_dtype=ggml_type)


def _plain(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """As numpy; bfloat16, which numpy lacks, as 16-bit integers with the same bits."""
    bits = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
    return bits.contiguous().numpy()

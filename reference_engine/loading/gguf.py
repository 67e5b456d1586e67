"""Reads llama.cpp's GGUF files as if they were Hugging Face checkpoints: same tensor names, same layout.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the `gguf` library parses and dequantises.
`get_quantised` returns a matrix in the blocks in which it is stored. llama.cpp permutes the rows of Llama's q and k for
its interleaved RoPE; `_undo_rope_permutation` restores Hugging Face's half-split order.
"""

import dataclasses
import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import torch

from bakeoff.reference_engine.core.model_config import ModelConfig, RopeScaling
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.kernels.blocks import FORMATS
from bakeoff.reference_engine.loading.gguf_tokenizer import CONTROL_TOKEN
from bakeoff.reference_engine.models.rope import frequency_divisors
from bakeoff.reference_engine.quantization.blocks import BlockMatrix

_VERSION = importlib.metadata.version("gguf")
_REMEDY = "give a file in a common type, such as Q8_0 or Q4_K_M"
_MAGIC = b"GGUF"
_MATRIX = 2  # dimensions
_HEADER_BYTES = 24  # magic, version, tensor count, metadata count
_FIELD_BYTES = 13  # at least: length of the name, type, and a value of one byte
_TENSOR_BYTES = 24  # at least: length of the name, number of dimensions, type and offset
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_DIVISORS = "rope_freqs.weight"
_DIVISOR_ERROR = 1e-4  # relative; of float32 arithmetic in another order
_END_ROLES = ("eos", "eot", "eom")  # the ends of a sequence, a turn and a message: each ends an answer
_ENDS_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")  # as in llama.cpp where no id is named

_TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_TENSOR_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class _Reader(gguf.GGUFReader):
    """The library's reader, which also checks the file's size before it reads tensor data."""

    def _get(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # Slices of a memmap take three times as long: 3.8 rather than 1.1 s for a vocabulary of 49,152 tokens.
        if isinstance(self.data, np.memmap):
            self.data = self.data.view(np.ndarray)
        return super()._get(*args, **kwargs)

    def _get_str(self, offset: int) -> Any:  # noqa: ANN401 (the library's type)
        self._check_count(int(self._get(offset, np.uint64)[0]), 1, offset)
        return super()._get_str(offset)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:  # noqa: ANN401
        if raw_type == gguf.GGUFValueType.ARRAY:
            self._check_count(int(self._get(orig_offs + 4, np.uint64)[0]), 1, orig_offs)
        return super()._get_field_parts(orig_offs, raw_type)

    def _build_fields(self, offs: int, count: int) -> int:
        self._check_count(int(count), _FIELD_BYTES, offs)
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int) -> Any:  # noqa: ANN401
        self._check_count(int(count), _TENSOR_BYTES, offs)
        return super()._build_tensor_info(offs, count)

    def _check_count(self, count: int, item_bytes: int, offset: int) -> None:
        """Compares a count with the rest of the file, so that a damaged one costs no loop."""
        rest = int(self.data.nbytes) - offset
        if count * item_bytes > rest:
            raise CheckpointError(f"its header counts {count} items where {rest} bytes are left; fetch it again")

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        expected = start_offs
        for field in fields:
            _, _, _, dims, raw_type, offset = field.parts
            try:
                block_size, type_size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(raw_type[0]))]
            except (ValueError, KeyError):
                raise CheckpointError(
                    f"tensor {field.name} has type {int(raw_type[0])}, unknown to gguf {_VERSION}; {_REMEDY}"
                ) from None
            tensor_bytes = int(np.prod(dims)) * type_size // block_size
            expected = max(expected, start_offs + int(offset[0]) + tensor_bytes)
        actual = int(self.data.nbytes)
        if actual < expected:
            raise CheckpointError(
                f"cut short: its header needs {expected} bytes, the file has {actual}; fetch it again"
            )
        super()._build_tensors(start_offs, fields)


class GgufFile:
    """An open GGUF file: `config`, `metadata`, and tensors by their Hugging Face names.

    Raises:
        CheckpointError: the file is not GGUF, is cut short, or its architecture is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = open_gguf(path)
        self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        architecture = self.metadata.get("general.architecture")
        if architecture not in _ARCHITECTURES:
            names = ", ".join(map(repr, _ARCHITECTURES))
            raise CheckpointError(f"{path}: GGUF architecture {architecture!r} is not supported, these are: {names}")
        stored = {tensor.name: tensor for tensor in reader.tensors}
        divisors = stored.pop(ROPE_DIVISORS, None)
        self._tensors = {_hf_name(name, path): tensor for name, tensor in stored.items()}
        self.config: ModelConfig = _read_config(self.metadata, architecture, set(self._tensors), str(path))
        if divisors is not None:
            scaling = _llama3_scaling(dequantised(divisors, path), self.config, path)
            self.config = dataclasses.replace(self.config, rope_scaling=scaling)

    def names(self) -> Sequence[str]:
        """Hugging Face names of all tensors."""
        return list(self._tensors)

    def get(
        self,
        name: str,
        dtype: torch.dtype | None = None,  # noqa: ARG002 (see WeightSource)
        device: torch.device | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The named tensor, dequantised to float32, in Hugging Face's row order."""
        return self._in_order(name, dequantised(self._stored(name), self.path))

    def get_quantised(self, name: str) -> BlockMatrix | None:
        """The matrix in its stored blocks, in Hugging Face's row order; None if `FORMATS` lacks its type."""
        stored = self._stored(name)
        block_format = FORMATS.get(stored.tensor_type.name)
        if block_format is None or len(stored.shape) != _MATRIX:
            return None
        # A row is a whole number of blocks, so rows can be permuted like rows of plain numbers.
        return BlockMatrix(self._in_order(name, torch.from_numpy(np.array(stored.data))), block_format)

    def _stored(self, name: str) -> gguf.ReaderTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: tensor {name} is missing; fetch the file again") from None

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        heads = permuted_heads(name, self.config)
        return rows if heads is None else _undo_rope_permutation(rows, heads)


def dequantised(stored: gguf.ReaderTensor, path: Path) -> torch.Tensor:
    """Dequantises a tensor to float32, in the file's row order.

    Raises:
        CheckpointError: its type cannot be dequantised; the message names tensor and type.
    """
    try:
        values = gguf.quants.dequantize(stored.data, stored.tensor_type)
    except NotImplementedError:
        raise CheckpointError(
            f"{path}: tensor {stored.name} has type {stored.tensor_type.name}, which cannot be dequantised; {_REMEDY}"
        ) from None
    return torch.from_numpy(np.array(values, dtype=np.float32))


def open_gguf(path: Path) -> gguf.GGUFReader:
    """Opens the whole file with the library's reader.

    Raises:
        CheckpointError: the file is not GGUF, or is cut short; the message gives the sizes.
    """
    actual = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != _MAGIC:
        raise CheckpointError(f"{path}: not a GGUF file (begins with {magic!r} instead of {_MAGIC!r}, {actual} bytes)")
    if actual < _HEADER_BYTES:
        raise CheckpointError(f"{path}: cut short: a GGUF header has {_HEADER_BYTES} bytes, the file has {actual}")
    try:
        return _Reader(path)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (IndexError, ValueError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: its GGUF header is cut short or damaged (expected more than the {actual} bytes it has); "
            f"fetch it again"
        ) from error


def gguf_name(name: str) -> str | None:
    """GGUF's name of a tensor by its Hugging Face name; None if it has none."""
    stem, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    names, wanted = (_BLOCK_TENSOR_NAMES, layer[2]) if layer else (_TENSOR_NAMES, stem)
    stored = next((own for own, stored_name in names.items() if stored_name == wanted), None)
    if stored is None or kind not in ("weight", "bias"):
        return None
    return f"blk.{layer[1]}.{stored}.{kind}" if layer else f"{stored}.{kind}"


def permuted_heads(name: str, config: ModelConfig) -> int | None:
    """Number of heads of a tensor whose rows llama.cpp permutes for RoPE, by its Hugging Face name; otherwise None."""
    if config.model_type not in ("llama", "mistral"):
        return None
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return heads.get(name.split(".")[-2])


def _hf_name(name: str, path: Path) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if block and block[2] in _BLOCK_TENSOR_NAMES:
        return f"model.layers.{block[1]}.{_BLOCK_TENSOR_NAMES[block[2]]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    if stem in _TENSOR_NAMES:
        return f"{_TENSOR_NAMES[stem]}.{kind}"
    raise CheckpointError(f"{path}: tensor {name} belongs to a model variant that is not supported")


def _undo_rope_permutation(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads * head_dim, ...] from llama.cpp's interleaved pairs (x0 y0 x1 y1 …) to halves (x0 x1 … y0 y1 …)."""
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _shortest_float(value: float) -> float:
    """GGUF stores float32; the shortest decimal that names it is the number the author wrote (1e-05, not 9.99…e-06)."""
    return float(str(np.float32(value)))


def _read_config(metadata: Mapping[str, Any], architecture: str, tensor_names: set[str], where: str) -> ModelConfig:
    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}

    def need(key: str) -> Any:  # noqa: ANN401 (GGUF values have no common type)
        if key not in own:
            raise CheckpointError(f"{where}: GGUF metadata {architecture}.{key} is missing; fetch the file again")
        return own[key]

    heads = int(need("attention.head_count"))
    hidden = int(need("embedding_length"))
    head_dim = int(own.get("attention.key_length", hidden // heads))
    if int(own.get("rope.dimension_count", head_dim)) != head_dim:
        raise CheckpointError(f"{where}: partial rotary embeddings are not supported")
    has_bias = "model.layers.0.self_attn.q_proj.bias" in tensor_names
    return ModelConfig(
        vocab_size=int(own.get("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))),
        hidden_size=hidden,
        intermediate_size=int(need("feed_forward_length")),
        num_hidden_layers=int(need("block_count")),
        num_attention_heads=heads,
        num_key_value_heads=int(own.get("attention.head_count_kv", heads)),
        head_dim=head_dim,
        max_position_embeddings=int(need("context_length")),
        rms_norm_eps=_shortest_float(need("attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest_float(own.get("rope.freq_base", 10000.0)),
        rope_scaling=_read_rope_scaling(own, where),
        tie_word_embeddings="lm_head.weight" not in tensor_names,
        attention_bias=has_bias and architecture != "qwen2",
        qkv_bias=has_bias and architecture == "qwen2",
        qk_norm="model.layers.0.self_attn.q_norm.weight" in tensor_names,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in tensor_names,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_end_ids(metadata),
        dtype="bfloat16",  # a quantised file names none; 16 bits hold what 4 to 8 bits kept
        model_type=architecture,
    )


def _end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    named = [metadata.get(f"tokenizer.ggml.{role}_token_id") for role in _END_ROLES]
    if metadata.get("tokenizer.ggml.eot_token_id") is None:
        kinds: Sequence[int] = metadata.get("tokenizer.ggml.token_type", ())
        tokens = enumerate(zip(metadata.get("tokenizer.ggml.tokens", ()), kinds, strict=False))
        named += [i for i, (text, kind) in tokens if kind == CONTROL_TOKEN and text in _ENDS_OF_TURN]
    return tuple(dict.fromkeys(int(token_id) for token_id in named if token_id is not None))


def _llama3_scaling(divisors: torch.Tensor, config: ModelConfig, path: Path) -> RopeScaling:
    """The scaling of Llama 3.1 to 3.3, of which GGUF stores only the divisor of each frequency.

    Raises:
        CheckpointError: the divisors are not those of that scaling with the bounds of the released models.
    """
    scaling = RopeScaling("llama3", factor=_shortest_float(float(divisors.max())))
    if divisors.shape == (config.head_dim // 2,) and scaling.factor >= 1:
        expected = frequency_divisors(config.head_dim, config.rope_theta, scaling)
        if torch.allclose(divisors, expected, rtol=_DIVISOR_ERROR, atol=0.0):
            return scaling
    raise CheckpointError(
        f"{path}: tensor {ROPE_DIVISORS} is not Llama 3's rope scaling of {scaling.original_max_position_embeddings} "
        "trained tokens; use the safetensors checkpoint"
    )


def _read_rope_scaling(own: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=_shortest_float(own["rope.scaling.factor"]))
    raise CheckpointError(f"{where}: GGUF rope scaling {kind!r} is not supported, only 'linear' is")

"""Writes a Hugging Face checkpoint as a GGUF file, for llama.cpp and for this engine.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the `gguf` library rounds blocks and writes. Tensors
are read, rounded and written one after the other, so that memory holds one at a time.

GGUF stores the name of a pre-tokenizer instead of its rules. The chosen name is the first whose rules, as
`gguf_tokenizer` reads them, encode a sample text in the same way as the checkpoint's own tokenizer; llama.cpp's
converter also recognises tokenizers by a sample.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt
import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.quantization_names import GgufName
from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.loading.gguf import ROPE_DIVISORS, gguf_name, permuted_heads
from bakeoff.reference_engine.loading.gguf_tokenizer import (
    CONTROL_TOKEN,
    PRE_TOKENIZERS,
    USER_DEFINED_TOKEN,
    build_tokenizer,
)
from bakeoff.reference_engine.loading.tokenizer import Tokenizer
from bakeoff.reference_engine.models.names import ENDS
from bakeoff.reference_engine.models.rope import frequency_divisors
from bakeoff.reference_engine.models.shapes import weight_shapes
from bakeoff.reference_engine.tools import gguf_k_blocks
from bakeoff.reference_engine.tools.checkpoint_folder import whole_file
from bakeoff.reference_engine.tools.progress import Progress
from bakeoff.reference_engine.tools.transformers_model import open_plain

_TYPES: Mapping[GgufName, tuple[gguf.GGMLQuantizationType, gguf.LlamaFileType]] = {
    "gguf-f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "gguf-f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "gguf-bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "gguf-q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "gguf-q5_1": (gguf.GGMLQuantizationType.Q5_1, gguf.LlamaFileType.MOSTLY_Q5_1),
    "gguf-q5_0": (gguf.GGMLQuantizationType.Q5_0, gguf.LlamaFileType.MOSTLY_Q5_0),
    "gguf-q4_1": (gguf.GGMLQuantizationType.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1),
    "gguf-q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "gguf-q4_k_m": (gguf.GGMLQuantizationType.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "gguf-mxfp4": (gguf.GGMLQuantizationType.MXFP4, gguf.LlamaFileType.MOSTLY_MXFP4_MOE),
}
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""GGUF's names of families."""
_Q4_K, _Q6_K = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K
_INSTEAD = {_Q4_K: gguf.GGMLQuantizationType.Q5_0, _Q6_K: gguf.GGMLQuantizationType.Q8_0}
"""Types of matrices whose rows are not whole blocks, as in llama.cpp."""
_SMALL_BLOCKS = ("gguf-q5_1", "gguf-q5_0", "gguf-q4_1", "gguf-q4_0", "gguf-mxfp4")
_MATRIX = 2  # dimensions
_NORMAL_TOKEN, _UNUSED_TOKEN = 1, 5  # llama.cpp's LLAMA_TOKEN_TYPE_NORMAL and LLAMA_TOKEN_TYPE_UNUSED
_END_ROLES = ("eos", "eot", "eom")
_ROLES = {"unk_token": "unknown", "pad_token": "padding"}
_SAMPLE = (
    "Hello  world!\n\n\tIt's 3.14159 or 2,000,000 — naïve café, Ünïcödé, 你好世界。 Привет! \n  def f(x1):\r\n"
    "    return x1 ** 42  # we'LL see\n\n\n <|im_start|>  🚀🎉 https://a.b/c?d=1&e=%20 'tis   "
)


def write_gguf(source: Path, target: Path, kind: GgufName, *, say: Callable[[str], None]) -> None:
    """Writes a file whose matrices have one type, or two of them; it appears whole or not at all.

    Norms and biases are float32. In types of 4 and 5 bits the embedding and the head are Q8_0, since each of their rows
    is a token. A matrix whose rows are not whole blocks is float16. `gguf-q4_k_m` is llama.cpp's mixture Q4_K_M: Q6_K
    for the head and, in the first and last eighth of the layers and in every third between, for the projections to
    values and the last matrices of feed-forward networks, else Q4_K; matrices whose rows are not whole blocks of 256
    are Q8_0 and Q5_0 instead.

    Args:
        source: plain checkpoint directory of a Llama, Mistral, Qwen2 or Qwen3 model with a byte-level BPE tokenizer.
        target: file to write; an existing one is replaced.
        kind: type of the matrices.
        say: called with lines of progress.

    Raises:
        CheckpointError: the source cannot be read, GGUF does not support the model or tokenizer, or the target does not
            end with .gguf.
    """
    if target.suffix != ".gguf" or target.is_dir():
        raise CheckpointError(f"{target} is not the name of a GGUF file; give --out one that ends with .gguf")
    checkpoint = open_plain(source)
    config = checkpoint.config
    metadata = {**_model_metadata(config, source), **_tokenizer_metadata(checkpoint.tokenizer, config, source)}
    shapes = weight_shapes(config)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(target) as scratch,
        contextlib.closing(gguf.GGUFWriter(str(scratch), _ARCHITECTURES[config.model_type])) as writer,
    ):
        _add_metadata(writer, {**metadata, "general.name": source.name, "general.file_type": int(_TYPES[kind][1])})
        extra = _rope_divisors(config)
        for name, tensor in extra.items():
            writer.add_tensor_info(name, tensor.shape, tensor.dtype, tensor.nbytes)
        kinds = {name: _kind(name, shape, kind, config) for name, shape in shapes.items()}
        for name, shape in shapes.items():
            _add_tensor_info(writer, name, shape, kinds[name], source)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        progress = Progress(say, "tensor", 0, len(shapes))
        for tensor in extra.values():
            writer.write_tensor_data(tensor)
        for done, name in enumerate(shapes, start=1):
            ordered = _in_order(name, checkpoint.weights.get(name), config)
            writer.write_tensor_data(_rounded(ordered.float(), kinds[name]))
            progress.advance(done)
    say(f"wrote {target}: {target.stat().st_size / 1e6:.0f} MB")


def _kind(name: str, shape: Sequence[int], kind: GgufName, config: ModelConfig) -> gguf.GGMLQuantizationType:
    if len(shape) < _MATRIX:
        return gguf.GGMLQuantizationType.F32
    if kind == "gguf-q4_k_m":
        chosen = _Q6_K if _has_six_bits(name, config) else _Q4_K
        if shape[-1] % gguf_k_blocks.BLOCK:
            chosen = _INSTEAD[chosen]
    else:
        chosen = _TYPES["gguf-q8_0" if name in ENDS and kind in _SMALL_BLOCKS else kind][0]
    block_size, _ = gguf.GGML_QUANT_SIZES[chosen]
    return gguf.GGMLQuantizationType.F16 if shape[-1] % block_size else chosen


def _has_six_bits(name: str, config: ModelConfig) -> bool:
    """Whether a matrix is one of those that Q4_K_M gives six bits."""
    embedding, head = ENDS
    if name == (embedding if config.tie_word_embeddings else head):
        return True
    layer = re.search(r"\.layers\.(\d+)\.(?:self_attn\.v_proj|mlp\.down_proj)\.", name)
    if layer is None:
        return False
    index, count = int(layer[1]), config.num_hidden_layers
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _rounded(weight: torch.Tensor, kind: gguf.GGMLQuantizationType) -> npt.NDArray[Any]:
    if kind in _INSTEAD:
        return gguf_k_blocks.quantise(weight, kind).numpy()
    return gguf.quants.quantize(weight.numpy(), kind)


def _add_tensor_info(
    writer: gguf.GGUFWriter, name: str, shape: Sequence[int], kind: gguf.GGMLQuantizationType, source: Path
) -> None:
    """Adds a tensor to the file's list."""
    stored = gguf_name(name)
    if stored is None:
        raise CheckpointError(f"{source}: GGUF has no name for the tensor {name}")
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    num_bytes = math.prod(shape) // block_size * block_bytes
    writer.add_tensor_info(stored, shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)


def _in_order(name: str, tensor: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Rows in llama.cpp's order: for its interleaved RoPE, those of Llama's q and k alternate between head halves."""
    heads = permuted_heads(name, config)
    if heads is None:
        return tensor
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _rope_divisors(config: ModelConfig) -> dict[str, npt.NDArray[np.float32]]:
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "llama3":
        return {}
    return {ROPE_DIVISORS: frequency_divisors(config.head_dim, config.rope_theta, scaling).float().numpy()}


def _model_metadata(config: ModelConfig, source: Path) -> dict[str, Any]:
    scaling = config.rope_scaling
    if config.model_type not in _ARCHITECTURES or config.cla_factor > 1 or any(config.windows):
        raise CheckpointError(
            f"{source}: GGUF files are written for {', '.join(_ARCHITECTURES)} without windows or shared layers, not "
            f"for {config.model_type!r} models like this"
        )
    if scaling is not None and scaling.kind not in ("linear", "llama3"):
        raise CheckpointError(f"{source}: rope scaling {scaling.kind!r} is not written to GGUF, only linear and llama3")
    own = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_theta),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    if scaling is not None and scaling.kind == "linear":
        own |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.factor)}
    return {f"{_ARCHITECTURES[config.model_type]}.{key}": value for key, value in own.items()}


def _tokenizer_metadata(tokenizer: Tokenizer, config: ModelConfig, source: Path) -> dict[str, Any]:
    content = json.loads(tokenizer.backend.to_str())
    model = content["model"]
    if model["type"] != "BPE" or not tokenizer.is_byte_level:
        raise CheckpointError(f"{source}: GGUF files are written with byte-level BPE tokenizers, this one is another")
    added = {token["id"]: token for token in content["added_tokens"]}
    texts = {token_id: text for text, token_id in tokenizer.backend.get_vocab(with_added_tokens=True).items()}
    token_ids = range(max(config.vocab_size, max(texts) + 1))
    own: dict[str, Any] = {
        "model": "gpt2",
        "tokens": [texts.get(token_id, f"[PAD{token_id}]") for token_id in token_ids],
        "token_type": [_token_type(token_id, texts, added) for token_id in token_ids],
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
        "add_bos_token": tokenizer.encode("") == [config.bos_token_id],
        **{f"{role}_token_id": token_id for role, token_id in _special_ids(tokenizer, config)},
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in own.items()}
    if tokenizer.chat_template is not None:
        metadata["tokenizer.chat_template"] = tokenizer.chat_template
    expected = tokenizer.encode(_SAMPLE)
    for pre in PRE_TOKENIZERS:
        named = {**metadata, "tokenizer.ggml.pre": pre}
        if build_tokenizer(named, str(source)).encode(_SAMPLE).ids == expected:
            return named
    raise CheckpointError(
        f"{source}: none of the pre-tokenizers {', '.join(PRE_TOKENIZERS)} encodes a sample text as tokenizer.json does"
    )


def _token_type(token_id: int, texts: Mapping[int, str], added: Mapping[int, Mapping[str, Any]]) -> int:
    if token_id not in texts:
        return _UNUSED_TOKEN
    if token_id not in added:
        return _NORMAL_TOKEN
    return CONTROL_TOKEN if added[token_id]["special"] else USER_DEFINED_TOKEN


def _special_ids(tokenizer: Tokenizer, config: ModelConfig) -> Iterator[tuple[str, int]]:
    if config.bos_token_id is not None:
        yield "bos", config.bos_token_id
    yield from zip(_END_ROLES, config.eos_token_ids, strict=False)
    for role, name in _ROLES.items():
        text = tokenizer.special_tokens.get(role)
        token_id = None if text is None else tokenizer.backend.token_to_id(text)
        if token_id is not None:
            yield name, token_id


def _add_metadata(writer: gguf.GGUFWriter, metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)

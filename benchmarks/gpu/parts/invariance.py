"""Guarantees and cost of `--batch-invariant` on the device.

The models are random and small, one for each kind of layer: biases, norms of queries and keys, windows, experts.
"""

import contextlib
import functools
import gc
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.kernels import invariant_products
from bakeoff.reference_engine.kernels.invariant_products import multiply_invariantly
from bakeoff.reference_engine.offline import LLM, generate
from benchmarks.gpu.offline import LLAMA_8B
from benchmarks.gpu.parts.correctness import error, random_rows
from benchmarks.gpu.parts.timing import CACHE_BYTES, LAYER_PRODUCTS, PEAK_GBS, graph_us, if_it_fits

SMALL: dict[str, Any] = {
    "vocab_size": 2000, "hidden_size": 576, "intermediate_size": 1100, "num_hidden_layers": 4,
    "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2", "hidden_size": 768},
    "qwen3": {"model_type": "qwen3", "head_dim": 128},
    "gemma3": {
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "sliding_window": 100,
        "sliding_window_pattern": 2, "query_pre_attn_scalar": 256,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2},
}  # fmt: skip
LAYERS = 8  # of the model whose speed is measured
TILES = [  # rows, outputs, inputs, stages, warps
    (128, 64, 128, 4, 4), (128, 64, 64, 4, 4), (64, 64, 128, 4, 4), (64, 128, 128, 4, 4), (128, 128, 64, 4, 8),
    (256, 64, 64, 4, 4), (256, 128, 64, 3, 8), (32, 64, 128, 5, 4),
]  # fmt: skip


def product_differences() -> Iterator[tuple[str, float]]:
    """Number of rows whose bits depend on the number of rows, and the error of all rows."""
    for outputs, inputs in ((6144, 4096), (4096, 14_336), (128_256, 512), (70, 300), (576, 1536)):
        weight, rows, bias = random_rows(outputs, inputs), random_rows(2000, inputs), random_rows(outputs)
        whole = multiply_invariantly(rows, weight, bias, torch.float32)
        exact = rows[:300].double() @ weight.double().T + bias.double()
        yield "invariant products", error(whole[:300], exact)
        different = 0
        for first, count in ((0, 1), (1999, 1), (77, 1), (3, 8), (100, 64), (5, 129), (900, 1000)):
            part = multiply_invariantly(rows[first : first + count], weight, bias, torch.float32)
            different += int((part != whole[first : first + count]).any(dim=1).sum())
        yield "rows of products that depend on the batch", different


@contextlib.contextmanager
def engine(model: Path | dict[str, Any], **settings: Any) -> Iterator[LLM]:  # noqa: ANN401  (fields of EngineConfig)
    """An engine of a checkpoint, or of a config.json with random weights."""
    gc.collect()  # the graphs of the previous engine are in a reference cycle
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as name:
        if isinstance(model, dict):
            Path(name, "config.json").write_text(json.dumps(model), encoding="utf-8")
            settings = {"load_format": "dummy", **settings}
        with LLM(Path(name) if isinstance(model, dict) else model, **{"device": "cuda", **settings}) as llm:
            yield llm


def token_differences(model: Path | None = None, count: int = 32) -> Iterator[tuple[str, float]]:
    """Number of requests whose tokens depend on the batch, for each small model or for a checkpoint.

    Every second request is greedy, the others are seeded. They are computed one after the other, then all at once with
    prompts cut into chunks of at most 256 tokens, then once more where prompts are cached.
    """
    rng = random.Random(5)
    models = MODELS if model is None else {model.name: model}
    for name, changes in models.items():
        checkpoint = SMALL | changes if isinstance(changes, dict) else changes
        prompts = [[rng.randrange(2000) for _ in range(rng.randint(1, 700))] for _ in range(count)]
        params = [SamplingParams(max_tokens=rng.randint(1, 32), temperature=float(i % 2), seed=i) for i in range(count)]
        common = {"max_model_len": 1024, "num_blocks": 4096}
        batched = common | {"max_num_batched_tokens": 256, "max_num_seqs": 24}
        with engine(checkpoint, batch_invariant=True, enable_prefix_caching=False, **common) as llm:
            alone = [generate(llm.engine, [prompt], [param])[0] for prompt, param in zip(prompts, params, strict=True)]
        with engine(checkpoint, batch_invariant=True, **batched) as llm:
            for case in ("in a batch", "with cached prompts"):
                together = generate(llm.engine, prompts, params)
                yield f"{name}: requests with other tokens {case}", unequal(alone, together)


def unequal(left: Sequence[object], right: Sequence[object]) -> int:
    return sum(a != b for a, b in zip(left, right, strict=True))


def costs() -> Iterator[tuple[str, float, float]]:
    """Tokens/s of the mode for 8 layers of Llama 3.1 8B, and its share of the default's."""
    cells = [(1, 128, 128), (8, 128, 128), (64, 128, 128), (1, 8000, 64), (8, 1024, 1)]
    raw = LLAMA_8B | {"num_hidden_layers": LAYERS}
    slow_s, fast_s = (seconds_of(raw, cells, batch_invariant=is_invariant) for is_invariant in (True, False))
    for (requests, prompt, output), slow, fast in zip(cells, slow_s, fast_s, strict=True):
        tokens = requests * (output if output > 1 else prompt)
        yield f"{requests} requests, {prompt} in, {output} out", tokens / slow, fast / slow


def seconds_of(raw: dict[str, Any], cells: Sequence[tuple[int, int, int]], **settings: Any) -> list[float]:  # noqa: ANN401
    """Seconds of each cell, (requests, prompt tokens, output tokens), after a warm-up."""
    seconds: list[float] = []
    common = {"max_model_len": 8192, "max_num_seqs": 64, "enable_prefix_caching": False}
    with engine(raw, **{**common, **settings}) as llm:
        for number, (requests, prompt, output) in enumerate(cells):
            rng = random.Random(number)
            prompts = [[rng.randrange(1000) for _ in range(prompt)] for _ in range(requests)]
            params = [SamplingParams(max_tokens=output, temperature=0.0)] * requests
            generate(llm.engine, prompts, params)
            began = time.perf_counter()
            generate(llm.engine, prompts, params)
            seconds.append(time.perf_counter() - began)
    return seconds


def sweep() -> Iterator[tuple[str, float, float]]:
    """Products of a layer with other tiles, which must be the same for all numbers of rows."""
    names = ("_TILE_ROWS", "_TILE_OUTPUTS", "_TILE_INPUTS", "_STAGES", "_WARPS")
    chosen = {name: getattr(invariant_products, name) for name in names}
    for tile, rows in itertools.product(TILES, (1, 64, 4096)):
        vars(invariant_products).update(zip(names, tile, strict=True))
        us = weight_bytes = 0.0
        for outputs, inputs in LAYER_PRODUCTS.values():
            x = random_rows(rows, inputs)
            weights = [random_rows(outputs, inputs) for _ in range(int(CACHE_BYTES / (2 * outputs * inputs)) + 2)]
            calls = [functools.partial(multiply_invariantly, x, weight) for weight in weights]
            us += if_it_fits(functools.partial(graph_us, calls))
            weight_bytes += 2 * outputs * inputs
        yield f"a layer's products, {rows} rows, {'x'.join(map(str, tile))}", us, weight_bytes / us / 1e3 / PEAK_GBS
    vars(invariant_products).update(chosen)

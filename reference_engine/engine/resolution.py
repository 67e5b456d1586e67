"""Resolves settings: the only place that replaces "auto" and derives values from model and machine."""

import dataclasses
import os

import torch

from bakeoff.reference_engine.ablations.heavy_hitter import scored
from bakeoff.reference_engine.core.ablations import FLAG
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import Stage
from bakeoff.reference_engine.engine.batch_invariance import check_batch_invariance
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout, LayerLayout, windowed
from bakeoff.reference_engine.kv_cache.quantised import store_maker
from bakeoff.reference_engine.kv_cache.sizing import Demand
from bakeoff.reference_engine.kv_cache.storage import StoreMaker, token_bytes
from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.sharding import config_of_rank, layers_of_stage
from bakeoff.reference_engine.scheduling.limits import Limits

_FREE_MEMORY_SHARE = 0.25  # of a host's free memory; the machine has other work too
_BATCHES = {"cpu": (64, 512), "cuda": (256, 8192)}  # default sequences and tokens of a step
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_config(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """The settings with every None and "auto" resolved for this model and machine.

    On a GPU the size of the KV cache stays None unless the settings give it; `build_engine` measures it.

    Raises:
        ConfigError: CUDA is asked for but missing, or there are too few GPUs; a model is shorter than the wanted length
            or cannot be split into so many parts; weights are offloaded on a CPU, or exceed host memory; there are
            windows in contiguous memory, or two cache sizes; or no kernel is batch-invariant.
    """
    device = resolve_device(config.device)
    if device == "cuda" and config.num_ranks > torch.cuda.device_count():
        sizes = f"--tensor-parallel-size {config.tensor_parallel_size}"
        if config.context_parallel_size > 1:
            sizes = f"--context-parallel-size {config.context_parallel_size}"
        if config.pipeline_parallel_size > 1:
            sizes += f" times --pipeline-parallel-size {config.pipeline_parallel_size}"
        raise ConfigError(
            f"{sizes} wants as many GPUs, torch finds {torch.cuda.device_count()} here; make it smaller or use "
            "--device cpu"
        )
    if config.expert_parallel:
        _check_experts(config, model)
    _check_offload(config, device)
    dtype = config.dtype if config.dtype != "auto" else _default_dtype(model, device)
    length = config.max_model_len or model.default_length
    if config.ablations.streaming_sinks:
        _check_streaming(config, model)
    elif length > model.max_length:
        raise ConfigError(f"--max-model-len {length} is more than the {model.max_length} tokens the model was made for")
    if config.num_blocks is not None and config.kv_cache_memory_bytes is not None:
        raise ConfigError("--num-blocks and --kv-cache-memory-bytes both set the cache size; give one of them")
    max_num_seqs, max_num_batched_tokens = _BATCHES[device]
    max_num_batched_tokens = config.max_num_batched_tokens or max_num_batched_tokens
    decided = dataclasses.replace(
        config,
        device=device,
        dtype=dtype,
        max_model_len=length,
        max_num_seqs=config.max_num_seqs or max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_mixed_tokens=config.max_mixed_tokens or (None if device == "cuda" else max_num_batched_tokens),
        threads=config.threads or max(1, torch.get_num_threads() // config.num_processes),
        served_model_name=config.model_name,
    )
    demand = demand_of(decided, model)
    if config.batch_invariant:
        check_batch_invariance(torch.device(device), demand.layout)
    num_blocks = config.num_blocks or _default_num_blocks(decided, demand)
    return decided if num_blocks is None else with_cache(decided, demand, num_blocks)


def _check_streaming(config: EngineConfig, model: ModelConfig) -> None:
    """Refuses what sinks right before the window cannot be computed for."""
    if model.cached_vectors.value_in_key:
        raise ConfigError(f"{FLAG} streaming_sinks is not for {model.model_type}, whose keys are latents; leave it out")
    if model.rope_scaling is not None and model.rope_scaling.kind in ("dynamic", "longrope"):
        raise ConfigError(
            f"{FLAG} streaming_sinks is not for rope scaling {model.rope_scaling.kind!r}, which depends on the length "
            "of the text; leave it out"
        )
    seen = config.attention_window + config.attention_sinks
    if seen > model.max_length:
        raise ConfigError(
            f"--attention-window {config.attention_window} and --attention-sinks {config.attention_sinks} are more "
            f"than the {model.max_length} tokens the model was made for; make the window smaller"
        )


def sinks_seen_from(config: EngineConfig) -> int | None:
    """The last position from which queries look at sinks; None where that is each query's own, see `Weights`."""
    if not config.ablations.streaming_sinks:
        return None
    return config.attention_sinks + config.attention_window - 1


def with_cache(config: EngineConfig, demand: Demand, num_blocks: int) -> EngineConfig:
    """The configuration with a KV cache of that size."""
    windowed_groups = [visible for visible in demand.layout.groups if visible.window is not None]
    if windowed_groups and config.ablations.contiguous_cache:
        raise ConfigError(
            f"{FLAG} contiguous_cache cannot give back what has left a layer's window, and this model has windows; "
            "drop it"
        )
    # Otherwise `limits_of` refuses what does not fit, request by request.
    if config.cuts_prompts and num_blocks < min(map(demand.of_one, windowed_groups), default=0):
        raise ConfigError(
            f"{num_blocks} KV blocks of {config.block_size} tokens are less than the model's window; raise it"
        )
    return dataclasses.replace(config, num_blocks=num_blocks, kv_cache_memory_bytes=demand.bytes(num_blocks))


def cache_layout(model: ModelConfig) -> CacheLayout:
    """The layers' caches: keys and values of their own, unless neighbours share them."""
    windows = model.windows or (None,) * model.num_hidden_layers
    return CacheLayout(
        tuple(
            LayerLayout(**model.cached_vectors._asdict(), visible=Visible(window), shares=model.shared_layer(index))
            for index, window in enumerate(windows)
        )
    )


def _layout_of(config: EngineConfig, model: ModelConfig) -> CacheLayout:
    """The cache layout of each process, with the configured attention window."""
    layout = cache_layout(config_of_rank(model, config.tensor_parallel_size, whole_experts=config.expert_parallel))
    if config.attention_window:
        return windowed(layout, config.attention_window, config.attention_sinks)
    return layout


def demand_of(config: EngineConfig, model: ModelConfig, stage: Stage | None = None) -> Demand:
    """The most that sequences can need of each process's cache under a resolved configuration.

    Args:
        config: resolved.
        model: of all processes.
        stage: whose layers the cache is for; None for a cache of all layers that is as large as that of the largest.
    """
    layout = _layout_of(config, model)
    stages = [Stage(number, config.pipeline_parallel_size) for number in range(config.pipeline_parallel_size)]
    parts = [layout.part(layers_of_stage(model, of_stage)) for of_stage in stages]
    sizes = [token_bytes(part, DTYPES[config.dtype], store_maker_of(config)) for part in parts]
    if config.max_model_len is None or config.max_num_seqs is None or config.max_num_batched_tokens is None:
        raise ConfigError("the lengths of sequences and steps are open; resolve_config decides them")
    return Demand(
        layout=layout if stage is None else parts[stage.number],
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        # A prompt that is not cut is computed in one piece, however long it is.
        max_num_batched_tokens=config.max_num_batched_tokens if config.cuts_prompts else config.max_model_len,
        token_bytes=[max(of_stages) for of_stages in zip(*sizes, strict=True)],
    )


def _default_num_blocks(config: EngineConfig, demand: Demand) -> int | None:
    """None on a GPU, where it depends on the memory that the weights and a step leave."""
    budget = config.kv_cache_memory_bytes
    if budget is None and config.device == "cuda":
        return None
    if budget is None:
        free = int(_free_memory_bytes(config) * _FREE_MEMORY_SHARE)
        return max(1, demand.fitting(free))
    num_blocks = demand.filling(budget)
    if not num_blocks:
        raise ConfigError(f"--kv-cache-memory-bytes {budget} is less than one block of {demand.bytes(1)} bytes")
    return num_blocks


def resolve_device(wanted: str) -> str:
    """``cpu`` or ``cuda`` for a requested device, which may be ``auto``.

    Raises:
        ConfigError: CUDA is requested and not available.
    """
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise ConfigError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return "cuda" if has_cuda and wanted != "cpu" else "cpu"


def _check_experts(config: EngineConfig, model: ModelConfig) -> None:
    if not isinstance(model, MoeConfig):
        raise ConfigError(f"--expert-parallel is for mixtures of experts, and {model.model_type} is none; leave it out")
    if config.tensor_parallel_size == 1:
        raise ConfigError(
            "--expert-parallel shares out experts among the processes of --tensor-parallel-size, which is 1; raise it"
        )
    if config.tensor_parallel_size > model.num_experts:
        raise ConfigError(
            f"--expert-parallel: {config.tensor_parallel_size} processes are more than the model's "
            f"{model.num_experts} experts; lower --tensor-parallel-size"
        )


def _check_offload(config: EngineConfig, device: str) -> None:
    wanted, total = config.cpu_offload_gb * config.num_processes, host_memory_bytes() / 2**30
    if wanted and device == "cpu":
        raise ConfigError(
            "--cpu-offload-gb keeps weights of a GPU in host memory, where --device cpu has them; drop it"
        )
    if wanted > total:
        raise ConfigError(
            f"--cpu-offload-gb {config.cpu_offload_gb:g} takes {wanted:g} GiB of host memory for all processes, and "
            f"this machine has {total:.1f}; lower it"
        )


def host_memory_bytes() -> int:
    """Bytes of this machine's memory, free or in use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _default_dtype(model: ModelConfig, device: str) -> str:
    """The stored dtype; on the CPU half precision becomes bf16, the only 16-bit type CPUs multiply fast."""
    if device == "cuda" or model.dtype not in {"bfloat16", "float16"}:
        return model.dtype if model.dtype in DTYPES else "float32"
    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"  # noqa: SLF001 (no public name)


def _free_memory_bytes(config: EngineConfig) -> int:
    """Free bytes of the host's memory per process."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // config.num_processes


def limits_of(config: EngineConfig, model: ModelConfig) -> Limits:
    """The limits of requests under a resolved configuration whose KV cache has a size."""
    demand = demand_of(config, model)
    if config.num_blocks is None:
        raise ConfigError("limits need the size of the KV cache, which build_engine measures")
    # If every layer has a window, blocks are freed again and do not bound the length of a sequence, unless a preempted
    # one is computed again in one piece.
    has_full_layers = any(visible.window is None for visible in demand.layout.groups)
    is_bounded = has_full_layers or not config.cuts_prompts
    num_blocks = config.num_blocks if is_bounded else -(-demand.max_model_len // config.block_size)
    return Limits(
        max_model_len=demand.max_model_len,
        num_blocks=num_blocks,
        block_size=config.block_size,
        vocab_size=model.vocab_size,
        max_num_seqs=demand.max_num_seqs,
        unforkable_flag=config.ablations.flag_without_forks,
    )


def store_maker_of(config: EngineConfig) -> StoreMaker:
    """How keys and values are kept."""
    make = store_maker(config.kv_cache_dtype)
    return scored(make) if config.ablations.heavy_hitter else make

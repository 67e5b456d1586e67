"""Builds an engine from settings and a checkpoint."""

import dataclasses
from collections.abc import Callable

import torch

from bakeoff.reference_engine.ablations.contiguous import RunPool
from bakeoff.reference_engine.ablations.static_batching import StaticScheduler
from bakeoff.reference_engine.attention.base import LONG_CHUNK
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.core.scheduling_rules import Rules
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.engine.beam_search import conflicting_flag
from bakeoff.reference_engine.engine.executors import Shadow, build_executor, device_of_rank, max_rows_of, shape_of
from bakeoff.reference_engine.engine.head_loading import LoadedHead
from bakeoff.reference_engine.engine.memory_estimate import check_weights_fit
from bakeoff.reference_engine.engine.resolution import demand_of, limits_of, with_cache
from bakeoff.reference_engine.engine.runner import ModelRunner
from bakeoff.reference_engine.engine.step import Engine
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool
from bakeoff.reference_engine.kv_cache.cache import Group, KvCache
from bakeoff.reference_engine.kv_cache.sizing import Demand
from bakeoff.reference_engine.loading.checkpoint import Checkpoint
from bakeoff.reference_engine.models.execution import Executor, LocalExecutor, SlowedExecutor
from bakeoff.reference_engine.parallel.executor import ParallelExecutor
from bakeoff.reference_engine.sampling import Sampler
from bakeoff.reference_engine.sampling.grammar import Grammars
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.scheduling.scheduler import Scheduler
from bakeoff.reference_engine.speculation.draft_head import DraftHead
from bakeoff.reference_engine.speculation.draft_lengths import DraftLengths
from bakeoff.reference_engine.speculation.draft_model import DraftModel
from bakeoff.reference_engine.speculation.ngram import NgramDrafter
from bakeoff.reference_engine.speculation.speculator import Speculator
from bakeoff.reference_engine.speculation.step_costs import measure_step_costs

_OCCUPANCY_STEPS = 8


def build_engine(
    config: EngineConfig, checkpoint: Checkpoint, grammars: Grammars | None = None
) -> tuple[BeamSearchEngine, EngineConfig]:
    """Builds and warms up an engine; returns it with its fully resolved configuration.

    Args:
        config: as `resolve_config` returned it.
        checkpoint: its weights are loaded now.
        grammars: of the checkpoint; None for new ones.

    Raises:
        CheckpointError: weights are missing or damaged.
        ConfigError: weights do not fit into the GPU, or leave no room for a KV cache beside the largest step.
        EngineUnavailableError: another process that should share the model could not be started.
    """
    demand = demand_of(config, checkpoint.config)
    if config.device == "cuda":
        check_weights_fit(config, checkpoint, torch.cuda.get_device_properties(device_of_rank(config, 0)).total_memory)
    shadow = Shadow.load(config, checkpoint, demand)
    head = LoadedHead.load(config, checkpoint, demand)
    executor, check, close = _executor(config, checkpoint, shadow or head)
    if config.num_blocks is None:  # the padding block of each group comes after its last one
        config = with_cache(config, demand, max(executor.storage.padding_blocks))
    if config.max_mixed_tokens is None:
        config = dataclasses.replace(
            config, max_mixed_tokens=executor.max_graph_tokens or demand.max_num_batched_tokens
        )
    limits = limits_of(config, checkpoint.config)
    cache = KvCache(_groups(config, demand), prefix_caching=config.enable_prefix_caching)
    rules = Rules(
        max_num_seqs=demand.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or demand.max_num_batched_tokens,
        policy="continuous" if config.enable_chunked_prefill else "no_chunking",
        preemption=config.preemption,
        patience_steps=config.priority_patience_steps,
        max_waiting=config.max_queue,
        # A small part of a step's tokens at most, since a prompt that waits leaves so many of them unused.
        least_piece=min(LONG_CHUNK, demand.max_num_batched_tokens // 8) if config.device == "cuda" else 1,
        max_mixed_tokens=config.max_mixed_tokens if config.cuts_prompts else None,
    )
    if grammars is None:
        grammars = Grammars(checkpoint.tokenizer, limits.vocab_size, checkpoint.eos_token_ids)
    sampler = Sampler(grammars)
    draft_model = _draft_model(config, checkpoint, demand, executor, shadow or head)
    if config.ablations.slow:
        executor = SlowedExecutor(executor, config.ablations.slow)
    engine = Engine(
        StaticScheduler(cache, rules) if config.ablations.static_batching else Scheduler(cache, rules),
        ModelRunner(executor, sampler, draft_model, check, stages=config.pipeline_parallel_size),
        limits,
        sampler=sampler,
        occupancy_steps=_OCCUPANCY_STEPS,
        overlap=_can_overlap(config),
        stages=config.pipeline_parallel_size,
        speculator=_speculator(config, demand, executor, draft_model),
        close=close,
    )
    _warm_up(engine, limits)
    return BeamSearchEngine(engine, conflicting_flag(config), grammars=grammars), config


def _can_overlap(config: EngineConfig) -> bool:
    """Whether a step can be launched while another runs, because the runner waits for neither."""
    runs_ahead = config.device == "cuda" and not config.ablations.slow
    return config.overlap and runs_ahead and not config.ablations.static_batching


def _executor(
    config: EngineConfig, checkpoint: Checkpoint, shadow: Shadow | LoadedHead | None
) -> tuple[Executor, Callable[[], None], Callable[[], None]]:
    """The executor, a function that checks whether results are defined, and one that closes it."""
    if config.num_ranks == 1:
        taps = shadow.taps if isinstance(shadow, LoadedHead) else None
        shadow_bytes = shadow.token_bytes if shadow else 0
        return build_executor(config, checkpoint, shadow_bytes=shadow_bytes, taps=taps), _nothing, _nothing
    executor = ParallelExecutor(
        config, device_of_rank(config, 0), shape_of(config), lambda ranks: build_executor(config, checkpoint, ranks)
    )
    return executor, executor.check, executor.close


def _nothing() -> None:
    pass


def _draft_model(
    config: EngineConfig,
    checkpoint: Checkpoint,
    demand: Demand,
    executor: Executor,
    shadow: Shadow | LoadedHead | None,
) -> DraftModel | DraftHead | None:
    """A smaller model, the model's own first layers or a head; None if drafts need no computation."""
    is_residual = config.ablations.residual_drafts
    if isinstance(shadow, Shadow):
        drafter = shadow.executor(config, demand)
        return DraftModel(drafter, shadow.group, rejects_residually=is_residual, tokens=shadow.tokens)
    if not isinstance(executor, LocalExecutor):
        return None  # other processes share the model, and the settings refuse all but n-grams
    if shadow is not None:
        of_head = shadow.executor(config, demand, executor.embedding)
        return DraftHead(of_head, shadow.group, shadow.taps, rejects_residually=is_residual)
    if config.drafts is None or config.drafts.layers is None:
        return None
    num_layers = checkpoint.config.num_hidden_layers
    if config.drafts.layers >= num_layers:
        raise ConfigError(f"--speculation early_exit: the model has {num_layers} layers; exit before the last one")
    return DraftModel(executor.first_layers(config.drafts.layers), None, rejects_residually=is_residual)


def _speculator(
    config: EngineConfig, demand: Demand, executor: Executor, model: DraftModel | DraftHead | None
) -> Speculator | None:
    if config.drafts is None:
        return None
    max_rows = max_rows_of(config, demand)
    costs = draft_costs = None
    if config.adaptive_speculation:
        costs = measure_step_costs(executor, max_rows)
        draft_costs = None if model is None else measure_step_costs(model.executor, demand.max_num_seqs)
    lengths = DraftLengths(config.drafts.num_tokens, costs, draft_costs)
    if model is None:
        return Speculator(lengths, max_rows, NgramDrafter())
    return Speculator(lengths, max_rows, free=model.free)


def _groups(config: EngineConfig, demand: Demand) -> list[Group]:
    """One block pool for each group of layers, and one of host memory beside it where requests are swapped."""
    sizes = demand.sizes(config.num_blocks or 1)
    hosts = demand.sizes(demand.fitting(config.swap_memory_bytes)) if config.preemption == "swap" else [0] * len(sizes)
    return [
        Group(_pool(config, demand, size), visible, BlockPool(extra, config.block_size) if extra else None)
        for size, visible, extra in zip(sizes, demand.layout.groups, hosts, strict=True)
    ]


def _pool(config: EngineConfig, demand: Demand, num_blocks: int) -> BlockPool:
    if config.ablations.contiguous_cache:
        return RunPool(num_blocks, config.block_size, -(-demand.max_model_len // config.block_size))
    return BlockPool(num_blocks, config.block_size)


def _warm_up(engine: Engine, limits: Limits) -> None:
    """Runs a short request: the first call of each operator sets up its kernel."""
    prompt = [0] * min(16, limits.room_for_output(0) - 3)
    if prompt:
        engine.add(Request("warm-up", prompt, SamplingParams(max_tokens=3, temperature=0.0)))
    while engine.has_work:
        engine.step()
    engine.reset_prefix_cache()

"""Builds executors: a model on its device, and a KV cache of the size that fits."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from bakeoff.reference_engine.ablations.heavy_hitter import HeavyHitterAttention
from bakeoff.reference_engine.attention import make_attention
from bakeoff.reference_engine.attention.base import AttentionBackend
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.ranks import ALONE, Ranks
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine.gpu_memory import GpuBudget, largest_batch
from bakeoff.reference_engine.engine.memory import keep_few_multiplications
from bakeoff.reference_engine.engine.resolution import DTYPES, cache_layout, demand_of, sinks_seen_from, store_maker_of
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.kv_cache.layout import CacheLayout
from bakeoff.reference_engine.kv_cache.sizing import Demand
from bakeoff.reference_engine.kv_cache.storage import KvStorage, allocate_storage, token_bytes
from bakeoff.reference_engine.loading.checkpoint import Checkpoint, open_checkpoint
from bakeoff.reference_engine.models.decoder import Model, Taps
from bakeoff.reference_engine.models.execution import Batch, LocalExecutor
from bakeoff.reference_engine.models.offload import CudaLane, WeightOffload
from bakeoff.reference_engine.models.registry import build_model
from bakeoff.reference_engine.models.weight_bytes import Loading, product_bytes
from bakeoff.reference_engine.parallel.group import Shape
from bakeoff.reference_engine.sampling import choose
from bakeoff.reference_engine.sampling.prompt_scores import prompt_logprobs
from bakeoff.reference_engine.speculation.draft_vocabulary import TokenMap, read_draft_vocabulary

_log = logging.getLogger(__name__)

_MOST_ROWS = 256  # of a step with drafts, unless there are more sequences
_MOST_BLOCKS = 1 << 20  # of a GPU: for tiny models, more would cost the pool more than they are worth


def device_of_rank(config: EngineConfig, rank: int) -> torch.device:
    """The device of a rank."""
    is_alone = config.device == "cpu" or config.num_ranks == 1
    return torch.device(config.device) if is_alone else torch.device(config.device, rank)


def shape_of(config: EngineConfig) -> Shape:
    """The shape of the processes that share a model."""
    return Shape(config.tensor_parallel_size, config.pipeline_parallel_size, config.context_parallel_size)


def build_executor(
    config: EngineConfig,
    checkpoint: Checkpoint,
    ranks: Ranks = ALONE,
    *,
    shadow_bytes: int = 0,
    taps: Taps | None = None,
) -> LocalExecutor:
    """The executor of one process: its part of the model and of the KV cache.

    Args:
        config: as `resolve_config` returned it.
        checkpoint: whose weights are loaded now.
        ranks: the processes that share the model.
        shadow_bytes: bytes of a draft model's cache, for each token.
        taps: depths whose hidden states the model keeps for a draft head; None for none.

    Raises:
        CheckpointError: weights are missing or damaged.
        ConfigError: weights and the largest step leave no room for a KV cache.
    """
    keep_few_multiplications()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device, demand = device_of_rank(config, ranks.process), demand_of(config, checkpoint.config, ranks.stage)
    budget = GpuBudget(device, config.gpu_memory_utilization) if config.num_blocks is None else None
    offload = _offload(config, checkpoint, device) if config.cpu_offload_gb else None
    model = _loaded(config, checkpoint, demand, ranks, offload)
    if taps is not None:
        model = model.tapped(taps)
    num_blocks = config.num_blocks or 1
    if budget is not None:
        num_blocks = _measured_num_blocks(config, demand, model, budget, ranks, shadow_bytes=shadow_bytes)
    storage = storage_of(config, demand, num_blocks, device)
    host = None
    if config.preemption == "swap":
        host = storage_of(config, demand, demand.fitting(config.swap_memory_bytes), torch.device("cpu"))
    return _executor_over(config, demand, model, storage, host, ranks=ranks)


def _offload(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> WeightOffload:
    """Offloads as many weights as configured, evenly over this rank's share of the layers' matrices."""
    loading = Loading(DTYPES[config.dtype], device, config.quantization, checkpoint.format)
    layers = sum(product_bytes(checkpoint.config, loading).values())
    budget = int(config.cpu_offload_gb * 2**30)
    return WeightOffload(CudaLane(device), device, budget, layers // config.num_parts)


def _loaded(
    config: EngineConfig, checkpoint: Checkpoint, demand: Demand, ranks: Ranks, offload: WeightOffload | None = None
) -> Model:
    """The part of a model that a rank computes, with its weights."""
    return build_model(
        checkpoint.config,
        checkpoint.weights,
        max_positions=demand.max_model_len,
        dtype=DTYPES[config.dtype],
        device=device_of_rank(config, ranks.process),
        ranks=ranks,
        quantization=config.quantization,
        batch_invariant=config.batch_invariant,
        offload=offload,
        whole_experts=config.expert_parallel,
        sinks_seen_from=sinks_seen_from(config),
    )


def _executor_over(
    config: EngineConfig,
    demand: Demand,
    model: Model,
    storage: KvStorage,
    host: KvStorage | None,
    *,
    ranks: Ranks = ALONE,
) -> LocalExecutor:
    """An executor, which replays CUDA graphs if the model can be captured in them."""
    attention = attention_of(config, storage)
    if config.cuda_graphs and has_triton(storage.device):
        from bakeoff.reference_engine.attention.triton_backend import TritonAttention  # noqa: PLC0415 (needs Triton)
        from bakeoff.reference_engine.engine.graph_execution import GraphExecutor  # noqa: PLC0415 (needs Triton)

        if model.may_capture and isinstance(attention, TritonAttention):
            max_rows, max_tokens = max_rows_of(config, demand), demand.max_model_len
            return GraphExecutor(model, attention, host, max_rows=max_rows, max_tokens=max_tokens, ranks=ranks)
        _log.warning(
            "no CUDA graphs for this model because of the format of its weights or of its KV cache: small steps wait "
            "for their launches"
        )
    return LocalExecutor(model, attention, storage, host, ranks=ranks)


def _measured_num_blocks(
    config: EngineConfig, demand: Demand, model: Model, budget: GpuBudget, ranks: Ranks, *, shadow_bytes: int
) -> int:
    """KV blocks that fit on every rank's GPU beside the weights and the largest step, which all ranks compute now."""
    device = device_of_rank(config, ranks.process)
    batch, needed = largest_batch(demand, max_rows_of(config, demand))
    storage = storage_of(config, demand, needed, device)
    executor = LocalExecutor(model, attention_of(config, storage), storage, ranks=ranks)
    try:
        left = budget.left(lambda: run_largest(executor, batch)) + storage.bytes
    except torch.OutOfMemoryError as error:
        raise _too_large(config, "do not fit into") from error
    left = ranks.least(left)
    left = left * sum(demand.token_bytes) // (sum(demand.token_bytes) + shadow_bytes)
    num_blocks = min(demand.filling(left), max(demand.useful, _MOST_BLOCKS))
    if not num_blocks:
        raise _too_large(config, f"leave no KV block of {demand.bytes(1)} bytes in")
    return num_blocks


@torch.inference_mode()
def run_largest(executor: LocalExecutor, batch: Batch) -> None:
    """Computes a batch and everything after it that takes memory: scores of prompts, and draws from its logits.

    Args:
        executor: of the model.
        batch: from `largest_batch`.
    """

    def score(logits: torch.Tensor) -> None:
        prompt_logprobs(logits, [0] * len(logits), [1] * len(logits))

    logits = executor.execute(batch, score)
    if logits is not None:
        for top_p in (1.0, 0.9):
            request = Request("", [0], SamplingParams(max_tokens=1, top_p=top_p))
            choose(logits, [request] * len(logits))


def _too_large(config: EngineConfig, what: str) -> ConfigError:
    return ConfigError(
        f"the weights and a step of {config.max_num_batched_tokens} tokens {what} --gpu-memory-utilization "
        f"{config.gpu_memory_utilization} of the GPU; raise it or lower --max-num-batched-tokens"
    )


def max_rows_of(config: EngineConfig, demand: Demand) -> int:
    """Sampled rows of a step: a sequence has one, and one more for each of its drafts."""
    if config.drafts is None:
        return demand.max_num_seqs
    most = min(demand.max_num_seqs * (1 + config.drafts.num_tokens), demand.max_num_batched_tokens, _MOST_ROWS)
    return max(most, demand.max_num_seqs)


@dataclasses.dataclass(frozen=True)
class Shadow:
    """A draft model on its device, and the shape of its cache.

    Attributes:
        model: with its weights.
        layout: of its cache.
        token_bytes: of one token in all its layers.
        group: of the verifying model's layers, without a window, whose block tables it follows.
        tokens: of the rows of its head where that is trimmed.
    """

    model: Model
    layout: CacheLayout
    token_bytes: int
    group: int
    tokens: TokenMap | None

    @classmethod
    def load(cls, config: EngineConfig, checkpoint: Checkpoint, demand: Demand) -> "Shadow | None":
        """None without a draft model.

        Raises:
            CheckpointError: its weights, or the list of its head's rows, are missing or damaged.
            ConfigError: it has other tokens, or one of the models has windows.
        """
        if config.drafts is None or config.drafts.method != "draft" or config.drafts.model is None:
            return None
        draft = open_checkpoint(Path(config.drafts.model), config.load_format)
        layout = cache_layout(draft.config)
        windows = [visible.window for visible in demand.layout.groups]
        if None not in windows or any(visible.window is not None for visible in layout.groups):
            raise ConfigError("--speculation draft needs models that see their whole past; use ngram instead")
        same_tokens = draft.tokenizer.backend.get_vocab() == checkpoint.tokenizer.backend.get_vocab()
        if not same_tokens or draft.config.vocab_size != checkpoint.config.vocab_size:
            raise ConfigError(f"--speculation draft: {config.drafts.model} has other tokens than {config.model}")
        vocabulary, tokens = read_draft_vocabulary(draft), None
        if vocabulary is not None:
            draft, tokens = vocabulary.trimmed(draft), TokenMap(vocabulary, device_of_rank(config, 0))
        model = _loaded(config, draft, demand, ALONE)
        (token_size,) = token_bytes(layout, DTYPES[config.dtype], store_maker_of(config))
        return cls(model, layout, token_size, windows.index(None), tokens)

    def executor(self, config: EngineConfig, demand: Demand) -> LocalExecutor:
        """Over a cache with as many blocks as the verifying model's has."""
        storage, host = shadow_storages(config, demand, self.layout, self.group)
        return _executor_over(config, demand, self.model, storage, host)


def shadow_storages(
    config: EngineConfig, demand: Demand, layout: CacheLayout, group: int
) -> tuple[KvStorage, KvStorage | None]:
    """KV storage that follows a group of the verifying model's layers, and host memory where that model swaps.

    Args:
        config: whose cache has a size.
        demand: of the verifying model.
        layout: of the shadow, with one group.
        group: of the verifying model's layers.
    """
    storage = _allocated(config, layout, [demand.sizes(config.num_blocks or 1)[group]], device_of_rank(config, 0))
    if config.preemption != "swap":
        return storage, None
    sizes = [demand.sizes(demand.fitting(config.swap_memory_bytes))[group]]
    return storage, _allocated(config, layout, sizes, torch.device("cpu"))


def storage_of(config: EngineConfig, demand: Demand, num_blocks: int, device: torch.device) -> KvStorage:
    """KV storage as configured, with `num_blocks` blocks in the largest group."""
    return _allocated(config, demand.layout, demand.sizes(num_blocks), device)


def _allocated(config: EngineConfig, layout: CacheLayout, sizes: Sequence[int], device: torch.device) -> KvStorage:
    return allocate_storage(
        layout,
        num_blocks=sizes,
        block_size=config.block_size,
        dtype=DTYPES[config.dtype],
        device=device,
        make_store=store_maker_of(config),
    )


def attention_of(config: EngineConfig, storage: KvStorage) -> AttentionBackend:
    """The attention backend over a storage."""
    if budget := config.ablations.heavy_hitter:
        return HeavyHitterAttention(storage, budget)
    return make_attention(storage, batch_invariant=config.batch_invariant)

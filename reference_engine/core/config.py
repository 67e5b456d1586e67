"""The engine's settings: one frozen object; the same names in the flag, the field and the answer of GET /version."""

import dataclasses
import math
from typing import Annotated, Literal

from bakeoff.reference_engine.core.ablations import EXCLUDED, FLAG, SPELLINGS, Ablations
from bakeoff.reference_engine.core.quantization_names import KvCacheDtypeName, MethodName
from bakeoff.reference_engine.core.scheduling_rules import PreemptionName
from bakeoff.reference_engine.core.speculation_settings import Speculation
from bakeoff.reference_engine.errors import ConfigError

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DeviceName = Literal["auto", "cpu", "cuda"]
QuantizationName = Literal["auto", "stored", "none", MethodName]
LoadFormatName = Literal["auto", "dummy"]
GenerationConfigName = Literal["auto", "none"]


_POSITIVE = (
    "block_size", "max_num_seqs", "max_num_batched_tokens", "max_mixed_tokens", "threads", "max_model_len",
    "num_blocks", "max_queue", "priority_patience_steps", "data_parallel_size", "tensor_parallel_size",
    "pipeline_parallel_size", "context_parallel_size",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings. None and "auto" are resolved from model and machine; `/version` shows the result.

    Each field's annotation gives its meaning and unit; the command line builds its help from them.

    Raises:
        ConfigError: values that contradict each other, with the numbers.
    """

    model: Annotated[str, "Hugging Face checkpoint directory or .gguf file"]
    host: Annotated[str, "address to listen on"] = "127.0.0.1"
    port: Annotated[int, "TCP port to listen on; 0 takes a free one and logs it"] = 8000
    served_model_name: Annotated[str | None, "model name in the API; default: the last part of the model path"] = None
    dtype: Annotated[DtypeName, "type of weights, activations and KV cache; auto: as stored"] = "auto"
    quantization: Annotated[
        QuantizationName,
        "matrices of a quantised checkpoint; stored: kept as they are; none: in --dtype; auto: stored where there is a "
        "kernel; a method's name: quantise the layers of a plain checkpoint while loading",
    ] = "auto"
    load_format: Annotated[
        LoadFormatName, "auto: read the weights; dummy: random ones, for which a config.json is enough"
    ] = "auto"
    generation_config: Annotated[
        GenerationConfigName,
        "sampling of requests that name no temperature, top_p, …; auto: the checkpoint's generation_config.json; none: "
        "the whole distribution",
    ] = "auto"
    device: Annotated[DeviceName, "where the model runs; auto: cuda if there is one"] = "auto"
    data_parallel_size: Annotated[int, "engines behind the same port, each with the whole model"] = 1
    tensor_parallel_size: Annotated[
        int, "processes that share every layer and the KV cache; on CUDA each has a GPU of its own"
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        "stages that each have some of the layers, in --tensor-parallel-size processes; on CUDA all stages compute at "
        "once, for different requests",
    ] = 1
    context_parallel_size: Annotated[
        int,
        "processes that each have the whole model and share out the tokens of long prompts; needs "
        "--tensor-parallel-size 1 and --pipeline-parallel-size 1",
    ] = 1
    expert_parallel: Annotated[
        bool, "give each process of --tensor-parallel-size whole experts instead of a part of each"
    ] = False
    max_model_len: Annotated[
        int | None,
        "tokens, prompt and output together; default: the model's limit, or with dynamic and longrope scaling the "
        "length it was trained for",
    ] = None
    block_size: Annotated[int, "tokens per KV-cache block"] = 16
    num_blocks: Annotated[int | None, "KV-cache blocks; default: from --kv-cache-memory-bytes"] = None
    kv_cache_memory_bytes: Annotated[
        int | None,
        "bytes for the KV cache of a process; default: on a GPU what --gpu-memory-utilization leaves; on a CPU "
        "max-num-seqs full sequences, at most a quarter of free memory",
    ] = None
    gpu_memory_utilization: Annotated[
        float, "share of a GPU's memory that a process may use for weights, the largest step and the KV cache"
    ] = 0.9
    cpu_offload_gb: Annotated[
        float,
        "GiB of the layers' weights that each process keeps in host memory and copies to its GPU in every step, while "
        "the step computes; frees that much less two buffers of the largest matrix; slower by the time of the copies",
    ] = 0.0
    kv_cache_dtype: Annotated[
        KvCacheDtypeName,
        "how keys and values are kept; auto: in --dtype, not rounded; others save memory, but are read with stock "
        "operators instead of a compiled kernel: all of them on a CPU, int4 on a GPU",
    ] = "auto"
    attention_window: Annotated[int, "latest tokens that a token sees, in every layer; 0: all"] = 0
    attention_sinks: Annotated[int, "first tokens that stay in sight with --attention-window"] = 0
    max_num_seqs: Annotated[
        int | None, "requests that may run at the same time; default: 256 on a GPU, 64 on a CPU"
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        "tokens computed per step; longer prompts are cut into chunks; default: 8192 on a GPU, 512 on a CPU",
    ] = None
    max_mixed_tokens: Annotated[
        int | None,
        "tokens of a step that computes decodes and prompts, unless more prompts wait than two such steps hold; "
        "default: those of the largest CUDA graph, or as many as in other steps",
    ] = None
    enable_chunked_prefill: Annotated[
        bool, "cut long prompts into chunks that fill what decodes leave of a step; without it prompts are in one piece"
    ] = True
    preemption: Annotated[
        PreemptionName, "of a request that makes room: compute it again, or keep it in host memory"
    ] = "recompute"
    swap_memory_bytes: Annotated[
        int, "bytes of host memory of a process, for requests that make room with --preemption swap"
    ] = 1 << 30
    priority_patience_steps: Annotated[int, "steps by which one level of priority sends a request forward"] = 256
    max_queue: Annotated[int, "requests that may wait; more get HTTP 429"] = 8192
    enable_prefix_caching: Annotated[bool, "compute what prompts have in common at their beginning once"] = True
    cuda_graphs: Annotated[bool, "on CUDA, repeat small steps, which are captured at the start"] = True
    batch_invariant: Annotated[
        bool,
        "on CUDA, give a request the same tokens alone and in any batch, however prompts are cut and whatever is "
        "cached; slower; refused on a CPU, where the order of a sum depends on how a prompt is cut",
    ] = False
    overlap: Annotated[bool, "on CUDA, plan and launch a step while the one before it runs"] = True
    speculation: Annotated[
        str,
        "draft tokens cheaply and verify them together: ngram:4 copies what followed the same words before, at most 4 "
        "tokens; draft:3:FOLDER asks a smaller model, whose KV cache comes on top; early_exit:2:12 asks the first 12 "
        "layers; eagle:4:FOLDER asks an EAGLE-3 head (bakeoff models eagle); same answers as without; empty: none",
    ] = ""
    adaptive_speculation: Annotated[
        bool, "draft as many tokens as acceptance and batch size make worth it; without it always as many as possible"
    ] = True
    threads: Annotated[int | None, "CPU threads of each process; default: torch's own choice, shared among them"] = None
    drain_timeout_s: Annotated[int, "seconds that requests under way get to end after SIGTERM; 0: none"] = 30
    profile_dir: Annotated[str, "where POST /start_profile writes traces of the step loop; empty: nowhere"] = ""
    step_log_dir: Annotated[
        str, "where POST /start_step_log records the times of steps and requests (bakeoff profile); empty: nowhere"
    ] = ""
    ablation: Annotated[str, f"parts kept to be compared with, with commas between them: {SPELLINGS}"] = ""
    seed: Annotated[int, "seeds the requests that name no seed, in order of arrival"] = 0

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if self.drain_timeout_s < 0:
            raise ConfigError(f"--drain-timeout-s must be at least 0, not {self.drain_timeout_s}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be 0 to 65535, not {self.port}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}"
            )
        if not 0 <= self.cpu_offload_gb < math.inf:
            raise ConfigError(f"--cpu-offload-gb must be at least 0, not {self.cpu_offload_gb}")
        if (
            self.max_num_batched_tokens is not None
            and self.max_num_seqs is not None
            and self.max_num_batched_tokens < self.max_num_seqs
        ):
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}: a full batch could not decode one token each; raise the first"
            )
        _check_processes(self)
        _check_window(self)
        _check_ablations(self)
        _check_batch_invariance(self)
        _check_speculation(self)

    @property
    def drafts(self) -> Speculation | None:
        """The drafting method; None for no drafts."""
        return Speculation.parse(self.speculation) if self.speculation else None

    @property
    def ablations(self) -> Ablations:
        """What is taken out or replaced."""
        return Ablations.parse(self.ablation)

    @property
    def cuts_prompts(self) -> bool:
        """Whether long prompts are cut into chunks."""
        return self.enable_chunked_prefill and not self.ablations.static_batching

    @property
    def num_parts(self) -> int:
        """Processes that each have a part of the weights."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_ranks(self) -> int:
        """Processes that share a model, or its work."""
        return self.num_parts * self.context_parallel_size

    @property
    def num_processes(self) -> int:
        """Processes that compute."""
        return self.num_ranks * self.data_parallel_size

    @property
    def model_name(self) -> str:
        """The name that requests use."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]


def _check_window(config: EngineConfig) -> None:
    for name in ("attention_window", "attention_sinks"):
        if getattr(config, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0, not {getattr(config, name)}")
    if config.attention_sinks and not config.attention_window:
        raise ConfigError(
            "--attention-sinks is for --attention-window, without which all tokens stay in sight; set both"
        )


def _check_ablations(config: EngineConfig) -> None:
    ablations = config.ablations
    if ablations.streaming_sinks and not config.attention_sinks:
        raise ConfigError(f"{FLAG} streaming_sinks is for --attention-sinks; set both")
    if ablations.residual_drafts and (config.drafts is None or config.drafts.method == "ngram"):
        raise ConfigError(f"{FLAG} residual_drafts needs drafts of a model, --speculation draft, early_exit or eagle")
    given = {
        "--enable-prefix-caching": config.enable_prefix_caching,
        "--attention-window": config.attention_window > 0,
        "--tensor-parallel-size": config.tensor_parallel_size > 1,
        "--context-parallel-size": config.context_parallel_size > 1,
        "--batch-invariant": config.batch_invariant,
        "--speculation": config.drafts is not None,
    }
    for name, flags in EXCLUDED.items():
        for flag, reason in flags.items():
            if getattr(ablations, name) and given[flag]:
                way_out = "add --no-enable-prefix-caching" if flag == "--enable-prefix-caching" else "drop one"
                raise ConfigError(f"{FLAG} {name} excludes {flag}: {reason}; {way_out}")


def _check_processes(config: EngineConfig) -> None:
    if config.context_parallel_size > 1 and config.num_ranks > config.context_parallel_size:
        raise ConfigError(
            "--context-parallel-size gives each process the whole model, which --tensor-parallel-size and "
            "--pipeline-parallel-size part; choose one"
        )


def _check_batch_invariance(config: EngineConfig) -> None:
    if not config.batch_invariant:
        return
    obstacles = {
        "--tensor-parallel-size": config.tensor_parallel_size > 1,  # a collective's order depends on its size
        "--context-parallel-size": config.context_parallel_size > 1,  # a prompt's pieces depend on the batch
        "--kv-cache-dtype int4": config.kv_cache_dtype == "int4",
        f"--quantization {config.quantization}": config.quantization not in ("auto", "none"),
    }
    for flag, is_set in obstacles.items():
        if is_set:
            raise ConfigError(
                f"--batch-invariant has no kernels for {flag}, whose results depend on the batch; drop one"
            )


def _check_speculation(config: EngineConfig) -> None:
    if config.drafts is None:
        return
    obstacles: dict[str, bool] = {}
    if config.drafts.method != "ngram":
        obstacles["--tensor-parallel-size"] = config.tensor_parallel_size > 1
        obstacles["--pipeline-parallel-size"] = config.pipeline_parallel_size > 1
        obstacles["--context-parallel-size"] = config.context_parallel_size > 1
    if config.drafts.method in ("draft", "eagle"):
        obstacles["--attention-window"] = config.attention_window > 0  # the shadow of the cache keeps all tokens
    for flag, is_set in obstacles.items():
        if is_set:
            raise ConfigError(f"--speculation {config.drafts.method} does not work with {flag}; drop one")

"""Triton with TensorRT-LLM's models: at an address, or started on a repository of models that is there already."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from engines.base import Setup
from engines.dialects import Dialect, TritonDialect
from engines.dialects.triton import Fields
from engines.errors import BadOption, ModelNotFound
from engines.identity import Identity, Pages, field_of
from engines.launcher import Launch, Server, pick_port
from engines.metrics import Prometheus, Series
from engines.server_engine import ServerEngine
from engines.spec import Cannot, Spellings

_METRICS_PORT = 8002
"""Triton's usual one."""
_MODELS: dict[Fields, str] = {"ensemble": "ensemble", "llm-api": "tensorrt_llm"}
"""How the model is usually called in the repository."""
_REQUESTS, _BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"


def _in_the_repository(names: str) -> Cannot:
    return Cannot(f"the model repository says it ({names})")


class TritonOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the ``triton`` adapter."""

    fields: Fields = "ensemble"
    """Names of a request's fields: those of ``ensemble`` and ``tensorrt_llm_bls``, or of the ``llm-api`` model."""
    model_name: str | None = None
    """The model in Triton's repository; the default is ``ensemble``, or ``tensorrt_llm`` of the LLM API."""
    cumulative: bool | None = None
    """Whether events say the whole answer so far: on for the LLM API; ``tensorrt_llm_bls`` can be set up so too."""
    model_repository: str | None = None
    """Folder of the models, needed to start it."""
    metrics_port: int | None = None
    """Of its Prometheus page: 8002 at an address, a free one where it is started here. In a container or over ssh
    nothing is read without it, since only the port of requests is published; publish the other one in args."""


class TritonEngine(ServerEngine):
    """Starts ``tritonserver`` where a program, a container or a host is named; it is looked for nowhere."""

    adapter = "triton"
    Options = TritonOptions
    identity_pages = ("/v2", *(f"/v2/models/{name}/config" for name in _MODELS.values()))
    programs = ("tritonserver",)
    needs_gpu = True
    spellings: ClassVar[Spellings] = {
        "dtype": _in_the_repository("the engine or checkpoint decides it"),
        "quantization": _in_the_repository("the engine or checkpoint decides it"),
        "kv_cache_dtype": _in_the_repository("the engine or model.yaml"),
        "max_model_len": _in_the_repository("max_seq_len of the engine or of model.yaml"),
        "max_num_seqs": _in_the_repository("max_batch_size"),
        "max_num_batched_tokens": _in_the_repository("max_num_tokens of the engine or of model.yaml"),
        "tensor_parallel_size": _in_the_repository("the engine or model.yaml; several ranks are started by mpirun"),
        "pipeline_parallel_size": _in_the_repository("the engine or model.yaml; several ranks are started by mpirun"),
        "enable_prefix_caching": _in_the_repository("enable_kv_cache_reuse"),
        "enable_chunked_prefill": _in_the_repository("enable_chunked_context"),
        "speculation": _in_the_repository("decoding_mode, or speculative_config of model.yaml"),
        "seed": Cannot("it has no seed of its own, and requests ask for greedy decoding"),
        "memory_fraction": _in_the_repository("kv_cache_free_gpu_mem_fraction"),
    }
    container_command = ("tritonserver",)
    ready_path = "/v2/health/ready"
    ready_timeout_s = 1800.0
    stop_grace_s = (35.0, 10.0)  # it waits 30 s for its models to go

    @classmethod
    def identify(cls, pages: Pages) -> Identity | None:
        """See :class:`~engines.server_engine.ServerEngine`; the model's name in the repository tells the fields."""
        if field_of(pages, "/v2", "name") != "triton":
            return None
        loaded = ((fields, name) for fields, name in _MODELS.items() if f"/v2/models/{name}/config" in pages)
        fields, name = next(loaded, (None, None))
        return Identity(cls.adapter, (name,), options={"fields": fields}) if name else Identity(cls.adapter, ())

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """Its own."""
        options: TritonOptions = setup.options
        return TritonDialect(options.fields, cumulative=options.cumulative)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """See :class:`~engines.server_engine.ServerEngine`.

        Raises:
            BadOption: as there; or nothing says how it is started.
        """
        super().check(setup)
        deployment = setup.deployment
        if deployment.url:
            return
        if not (deployment.program or deployment.container or deployment.ssh):
            raise BadOption(f"engine '{cls.adapter}' is started by a program, container or ssh; name one, or give url")
        if setup.options.model_repository is None and not (deployment.ssh and deployment.ssh.model_path):
            raise BadOption(f"engine '{cls.adapter}' is started on a model repository; set options.model_repository")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options: TritonOptions = setup.options
        self.model_id = setup.deployment.served_model_name or options.model_name or _MODELS[options.fields]
        self._metrics_port = options.metrics_port or (_METRICS_PORT if self.url else None)
        self.metrics = _metrics(self._metrics_port) if self._metrics_port else None
        self.notes = tuple(_notes(options))

    def command(self) -> Sequence[str]:
        """The program that was named; over ssh it is looked for there."""
        return (self.setup.deployment.program or "tritonserver",)

    def model_file(self) -> str:
        """The repository, instead of a checkpoint.

        Raises:
            ModelNotFound: it is not there.
        """
        repository: str | None = self.setup.options.model_repository
        if remote := self.setup.deployment.ssh:
            return remote.model_path or repository or ""
        place = Path(repository or "").expanduser().absolute()
        if not place.is_dir():
            raise ModelNotFound(f"{place} is no folder; set options.model_repository to Triton's repository of models")
        return str(place)

    def launch(self, port: int) -> Launch | None:
        """See :class:`engines.base.Engine`; its page of metrics gets a port too."""
        deployment = self.setup.deployment
        if not (self.url or deployment.container or deployment.ssh):
            found = pick_port(self.setup.options.metrics_port)
            self._metrics_port = found if found != port else pick_port()
            self.metrics = _metrics(self._metrics_port)
        return super().launch(port)

    def arguments(self, host: str, port: int, model: str) -> Sequence[str]:
        """The repository and its ports, of which gRPC's is closed."""
        elsewhere = self.setup.deployment.container or self.setup.deployment.ssh
        metrics_port = _METRICS_PORT if elsewhere or not self._metrics_port else self._metrics_port
        where = ("--model-repository", model, "--http-address", host, "--http-port", str(port))
        return (*where, "--metrics-port", str(metrics_port), "--allow-grpc", "false")

    async def describe(self, server: Server) -> dict[str, Any]:
        """Triton's version and what it says of its model."""
        told = await server.get_json("/v2") or {}
        config = await server.get_json(f"/v2/models/{self.model_id}/config")
        found = {"version": told.get("version"), "model_config": config}
        return {name: value for name, value in found.items() if value is not None}


def _metrics(port: int) -> Prometheus:
    """Gauges only. What Triton calls active is in the batch or waiting for it."""
    values = {
        "running": (Series(_REQUESTS, {"request_type": "scheduled"}),),
        "waiting": (Series(_REQUESTS, {"request_type": "waiting"}),),
        "kv_usage_share": (Series(_BLOCKS, {"kv_cache_block_type": "fraction"}),),
    }
    return Prometheus(values, port=port)


def _notes(options: TritonOptions) -> Iterator[str]:
    yield "it tells neither counts nor ids of tokens: they are counted by the model's tokenizer, chunk by chunk"
    yield "its stream has no end mark: an answer whose connection was closed in order counts as whole"
    yield "block reuse, chunking and its share of memory are as its model repository says; no call empties its cache"
    if options.fields == "llm-api":
        yield "the length of its answers cannot be forced"

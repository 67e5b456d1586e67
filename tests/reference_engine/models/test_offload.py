"""Weights in host memory: the same tokens, as much less on the device, and no copy into a slot that is still read."""

import contextlib
import dataclasses
import logging

import pytest
import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.engine import executors, resolution
from bakeoff.reference_engine.engine.assembly import build_engine
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.errors import ConfigError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.models import linear
from bakeoff.reference_engine.models.linear import PlainLinear
from bakeoff.reference_engine.models.offload import CudaLane, WeightOffload, tensors_of
from bakeoff.reference_engine.models.weight_bytes import Loading, product_bytes
from bakeoff.reference_engine.quantization import blocks, integer_matrix
from bakeoff.reference_engine.quantization.rounding import zero_point
from tests.reference_engine.kernels.test_coded_products import as_if_on_a_gpu
from tests.reference_engine.models.tiny_families import answers, engine_config, make_family

PROMPTS = [list(range(3, 3 + length)) for length in (1, 5, 40)]
CPU = torch.device("cpu")
LAYER = 4 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64)  # of the tiny Llama


class HostLane:
    """Copies at once: a device with a stream that is never late."""

    def host_memory(self, size):
        return torch.zeros(size, dtype=torch.uint8)

    def follow(self):
        pass

    def copy(self, slot, target, source):
        target.copy_(source)

    def await_copy(self, slot):
        pass


class LateLane(HostLane):
    """Copies when the computation waits for them, and not a moment earlier; the slot holds nonsense until then."""

    def __init__(self):
        self.pending, self.is_followed = [], False

    def follow(self):
        self.is_followed = True

    def copy(self, slot, target, source):
        assert self.is_followed  # or it could overwrite what a product still reads
        target.fill_(0xFF)  # NaN
        self.pending.append((slot, target, source))

    def await_copy(self, slot):
        while any(entry[0] == slot for entry in self.pending):
            _, target, source = self.pending.pop(0)
            target.copy_(source)
        self.is_followed = False  # a product comes next


@pytest.fixture(autouse=True)
def _stock_products(monkeypatch):
    """Compiled products of CPUs keep addresses and packed weights; those of GPUs and stock torch keep tensors."""
    monkeypatch.setattr(linear, "can_pack", lambda weight: False)
    monkeypatch.setattr(linear, "can_tile", lambda weight: False)
    monkeypatch.setattr(integer_matrix.integers, "has_kernel", lambda *_: False)
    monkeypatch.setattr(blocks.quantised, "has_kernel", lambda *_: False)


@pytest.fixture
def built(monkeypatch):
    """Builds an engine with this much offloaded; returns it with the object that offloads."""

    def build(directory, offload_bytes, lane=HostLane, **settings):
        checkpoint, made = open_checkpoint(directory), []
        config = resolve_config(engine_config(directory, **settings), checkpoint.config)

        class Offload(WeightOffload):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                made.append(self)

        monkeypatch.setattr(executors, "CudaLane", lambda device: lane())
        monkeypatch.setattr(executors, "WeightOffload", Offload)
        config = dataclasses.replace(config, cpu_offload_gb=offload_bytes / 2**30)
        engine, _ = build_engine(config, checkpoint)
        return engine, made[0] if made else None

    return build


def layer_bytes(directory, quantization="none"):
    return sum(product_bytes(open_checkpoint(directory).config, Loading(torch.float32, CPU, quantization)).values())


@pytest.fixture(params=["llama", "gemma3", "mixtral", "deepseek_v2, all options"])
def family(request, tmp_path, save_checkpoint):
    return save_checkpoint(tmp_path, make_family(request.param))


@pytest.mark.parametrize("lane", [HostLane, LateLane])
def test_tokens_are_those_without_offload(built, family, lane):
    plain, _ = built(family, 0)
    total = layer_bytes(family)
    wanted, _ = answers(plain, PROMPTS, 6)
    for share in (0.4, 1.0):
        streamed, offload = built(family, int(total * share) + 1, lane)
        assert answers(streamed, PROMPTS, 6)[0] == wanted
        assert 0.5 * share * total < offload.host_bytes


@pytest.mark.parametrize("quantization", ["int8", "int4-zp", "fp8", "w8a8", "llm-int8", "nf4-double", "mxfp4"])
def test_quantised_matrices_are_offloaded_as_they_are(built, checkpoint_dir, quantization):
    plain, _ = built(checkpoint_dir, 0, quantization=quantization)
    streamed, offload = built(checkpoint_dir, 2**20, LateLane, quantization=quantization)
    assert answers(streamed, PROMPTS, 4) == answers(plain, PROMPTS, 4)
    held = layer_bytes(checkpoint_dir, quantization)
    assert held == pytest.approx(offload.host_bytes, rel=0.08)  # tables that stacked parts share, and alignment


@pytest.mark.usefixtures("ranks_as_threads")
def test_each_rank_offloads_of_its_share(built, checkpoint_dir):
    plain, _ = built(checkpoint_dir, 0)
    streamed, offload = built(checkpoint_dir, LAYER // 2, LateLane, tensor_parallel_size=2)
    assert answers(streamed, PROMPTS, 4) == answers(plain, PROMPTS, 4)
    assert LAYER // 4 < offload.host_bytes <= LAYER // 2
    streamed.close()


def resident_bytes(engine, offload):
    """Bytes of all storages that the model's objects reach, except host memory."""
    host = {unit.host.data_ptr() for unit in offload._units} if offload else set()
    storages = [tensor.untyped_storage() for tensor in tensors_of(engine.core._runner._executor._model)]
    return sum(
        {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in host}.values()
    )


def test_the_device_holds_less_by_what_is_offloaded_but_for_two_buffers(built, checkpoint_dir, caplog):
    plain, _ = built(checkpoint_dir, 0)
    with caplog.at_level(logging.INFO):
        streamed, offload = built(checkpoint_dir, LAYER)
    matrix = 4 * 64 * 192  # gate and up
    assert LAYER - matrix < offload.host_bytes <= LAYER
    assert offload.buffer_bytes <= 2 * matrix
    saved = resident_bytes(plain, None) - resident_bytes(streamed, offload)
    assert saved == offload.host_bytes - offload.buffer_bytes
    assert "0.1 MiB in host memory, with 0.1 MiB of buffers on the GPU" in caplog.text


def test_offloaded_products_are_spread_over_the_depth():
    offload = WeightOffload(HostLane(), CPU, 4096, 4 * 4096)
    products = [offload.offer(PlainLinear(torch.zeros(16, 16), None)) for _ in range(16)]
    assert [not isinstance(product, PlainLinear) for product in products] == [False, False, False, True] * 4
    offload.finish()
    assert (offload.host_bytes, offload.buffer_bytes) == (4096, 2 * 1024)


def test_more_than_there_is_offloads_all_and_says_so(built, checkpoint_dir, caplog):
    _, offload = built(checkpoint_dir, 2**30)
    assert offload.host_bytes == 2 * LAYER
    assert "--cpu-offload-gb 1 is more than the 0.000229 GiB of the layers' matrices: all of them" in caplog.text


def test_a_step_that_leaves_out_layers_waits_for_the_copies_it_began():
    lane = LateLane()
    offload = WeightOffload(lane, CPU, 2**20, 0)
    products = [offload.offer(PlainLinear(torch.full((2, 2), float(number)), None)) for number in range(5)]
    offload.finish()
    for used in (3, 5, 1):
        offload.begin()
        assert [float(product(torch.ones(1, 2))[0, 0]) for product in products[:used]] == [2.0 * i for i in range(used)]
        offload.end()
        assert not lane.pending  # or a CUDA graph could not be captured


def test_a_budget_below_any_product_offloads_nothing():
    lane = LateLane()
    offload, product = WeightOffload(lane, CPU, 8, 64), PlainLinear(torch.eye(2), None)
    assert offload.offer(product) is product
    offload.finish()
    offload.begin()
    offload.end()
    assert not lane.is_followed  # a stream that waits in a capture, and is not waited for, would spoil it


def test_products_out_of_their_order_are_a_mistake():
    offload = WeightOffload(HostLane(), CPU, 2**20, 0)
    products = [offload.offer(PlainLinear(torch.eye(2), None)) for _ in range(3)]
    offload.finish()
    offload.begin()
    products[2](torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="product 0 runs after product 2"):
        products[0](torch.ones(1, 2))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_words_of_codes_on_a_gpu_are_offloaded(monkeypatch, bits):
    as_if_on_a_gpu(monkeypatch)
    matrix = zero_point(torch.randn(64, 256) / 20, bits, 64).to(CPU, torch.float16)
    product, rows = matrix.linear(torch.randn(64).half()), torch.randn(2, 256).half()
    offload = WeightOffload(LateLane(), CPU, 2**20, 0)
    streamed = offload.offer(product)
    offload.finish()
    offload.begin()
    assert torch.equal(streamed(rows), product(rows))
    assert (
        offload.host_bytes
        >= matrix.held_bytes(CPU, torch.float16)
        == sum(tensor.nbytes for tensor in tensors_of(product) if tensor.dim() == 2)
    )


def test_a_cuda_stream_copies_behind_what_it_follows_and_in_front_of_what_awaits_it(monkeypatch):
    log = []

    class Event:
        def record(self):
            log.append("record")

    class Stream:
        def __init__(self, device=None):
            pass

        def wait_stream(self, other):
            log.append("copies wait")

        def wait_event(self, event):
            log.append("computation waits")

    @contextlib.contextmanager
    def entered(stream):
        log.append("enter")
        yield
        log.append("leave")

    fakes = {"Event": Event, "Stream": Stream, "stream": entered, "current_stream": lambda device: Stream()}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    lane, source, target = CudaLane(CPU), torch.arange(3), torch.zeros(3, dtype=torch.int64)
    lane.follow()
    lane.copy(1, target, source)
    lane.await_copy(1)
    assert log == ["copies wait", "enter", "record", "leave", "computation waits"]
    assert torch.equal(target, source)


def test_a_cpu_refuses_it(checkpoint_dir):
    config = EngineConfig(model=str(checkpoint_dir), cpu_offload_gb=1)
    with pytest.raises(ConfigError, match="--cpu-offload-gb keeps weights of a GPU in host memory, where --device cpu"):
        resolve_config(config, open_checkpoint(checkpoint_dir).config)


def test_more_than_host_memory_is_refused(monkeypatch, checkpoint_dir):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(resolution, "host_memory_bytes", lambda: 16 * 2**30)
    config = EngineConfig(model=str(checkpoint_dir), cpu_offload_gb=8.5, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match=r"takes 17 GiB of host memory for all processes, and this machine has 16\.0"):
        resolve_config(config, open_checkpoint(checkpoint_dir).config)


@pytest.mark.parametrize("size", [-1.0, float("nan")])
def test_a_size_is_one(size):
    with pytest.raises(ConfigError, match="--cpu-offload-gb must be at least 0"):
        EngineConfig(model="m", cpu_offload_gb=size)

"""A tiny random Llama with a byte-level tokenizer, in the shape of a real checkpoint, and ways to run and serve it."""

import asyncio
import contextlib
import functools
import inspect
import json
import signal
import socket
import tempfile
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import triton
from aiohttp.test_utils import TestClient, TestServer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from triton.runtime import interpreter

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.engine import assembly
from bakeoff.reference_engine.engine.runner import Collected
from bakeoff.reference_engine.offline import load_engine
from bakeoff.reference_engine.parallel.group import connect
from bakeoff.reference_engine.parallel.messages import decode_batch, encode_batch
from bakeoff.reference_engine.serving.core import loop as core_loop
from bakeoff.reference_engine.serving.server import make_app
from bakeoff.reference_engine.serving.service import Service

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r"), ("Ġw", "or")]
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = len(SPECIAL) + 256 + len(MERGES)


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread():
    """Two threads that wait for each other on a busy machine make tiny models slower, not faster."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL, *alphabet, *(a + b for a, b in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def make_hf_model(**changes):
    torch.manual_seed(7)
    settings = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.3,
    }
    model = LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def write_checkpoint(directory, model, **save):
    model.save_pretrained(directory, **save)
    make_tokenizer().save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="session")
def hf_model():
    return make_hf_model()


@pytest.fixture(scope="session")
def checkpoint_dir(tmp_path_factory, hf_model):
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), hf_model)


@pytest.fixture
def tiny_config(checkpoint_dir):
    def build(**changes):
        settings = {"model": str(checkpoint_dir), "dtype": "float32", "served_model_name": "tiny", "threads": 1}
        settings |= {"num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64} | changes
        return EngineConfig(**settings)

    return build


@pytest.fixture
def tiny_engine(tiny_config):
    return lambda **changes: load_engine(tiny_config(**changes))


@torch.inference_mode()
def hf_greedy(model, prompt, length):
    """Transformers' own greedy continuation and, per position, the gap between its two best log-probabilities."""
    ids, cache, tokens, margins = torch.tensor([prompt]), None, [], []
    for _ in range(length):
        answer = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        best = answer.logits[0, -1].log_softmax(-1).topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        ids = best.indices[:1][None]
    return tokens, margins


@pytest.fixture
def _default_interrupts():
    """Handle interrupts as in a terminal, whatever this process inherited."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def greedy():
    return hf_greedy


@pytest.fixture(scope="session")
def make_model():
    return make_hf_model


@pytest.fixture(scope="session")
def save_checkpoint():
    return write_checkpoint


class Served:
    """A client of an in-process server, with shorthands."""

    def __init__(self, client, service):
        self.client = client
        self.service = service

    @property
    def engine(self):
        """The first replica's; it works on a thread of its own."""
        return self.service.ready().engines.replicas[0].core.engine

    async def post(self, path, body, status=200):
        async with self.client.post(path, json=body) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def stream(self, path, body):
        async with self.client.post(path, json=body | {"stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            events = (await answer.read()).decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    async def metric(self, name):
        async with self.client.get("/metrics") as answer:
            for line in (await answer.text()).splitlines():
                series, _, value = line.rpartition(" ")
                if series in (f'vllm:{name}{{model_name="tiny"}}', f'reference_engine_{name}{{model_name="tiny"}}'):
                    return float(value)
        raise AssertionError(f"no metric {name}")

    async def until(self, condition):
        """Polls an async condition, giving up after 20 s."""
        async with asyncio.timeout(20):
            while not await condition():  # noqa: ASYNC110 (the condition lives behind HTTP or on a thread)
                await asyncio.sleep(0)


class ThreadCore:
    """An engine on a thread of this process; the code that serves it also serves engines in processes of their own."""

    def __init__(self, config, loader):
        self.socket, core_end = socket.socketpair()
        self.engine = None

        def load(config):
            self.engine, facts = loader(config)
            return self.engine, facts

        self.thread = threading.Thread(target=core_loop.serve_engine, args=(core_end, load), name="engine", daemon=True)
        self.thread.start()

    def kill(self):
        """Do nothing: Python cannot kill a thread, and this one ends when it has loaded."""

    async def ended(self):
        await asyncio.to_thread(self.thread.join, 20)
        return "the thread has ended"


@pytest.fixture
def serve(tiny_config):
    """`async with serve(**config) as served`: a server around the tiny model, all in this process."""

    @contextlib.asynccontextmanager
    async def start(loader=core_loop.load, *, load=True, config=None, api_key=None, **changes):
        service = Service(config or tiny_config(**changes), lambda config, _: ThreadCore(config, loader))
        server = TestServer(make_app(service, api_key))
        await server.start_server(
            auto_decompress=False
        )  # as ours; its runner cancels handlers whose client has gone, as ours does
        async with TestClient(server) as client:
            if load:
                await service.load()
            yield Served(client, service)
            await service.stop()

    return start


class RanksAsThreads:
    """A ParallelExecutor whose processes are threads of this one: gloo and messages without a second of start."""

    def __init__(self, config, device, shape, build, *, tmp_path):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        self.pool, numbers = ThreadPoolExecutor(shape.size), range(shape.size)
        self.groups = list(self.pool.map(lambda number: connect(folder, number, shape, device), numbers))
        self.executors = list(self.pool.map(build, self.groups))
        self.storage = self.executors[0].storage

    def execute(self, batch, read=None):
        message = encode_batch(batch)

        def execute(rank):
            def receive(count):
                return self.groups[rank].broadcast(torch.zeros(count, dtype=torch.int64) if rank else batch.previous)

            return self.executors[rank].execute(decode_batch(message, receive), None if rank else read)

        logits, *_ = self.pool.map(execute, range(len(self.executors)))
        return logits

    def check(self):
        pass

    def close(self):
        self.pool.shutdown()
        for group in self.groups:
            group.abort()


@pytest.fixture(scope="session", autouse=True)
def _language_listed_once():
    """Triton's interpreter lists its whole language at each call of a function, a fifth of the time of these tests."""

    @functools.cache
    def builtins(package):
        return [
            (name, member) for name, member in inspect.getmembers(package) if triton.language.core.is_builtin(member)
        ]

    def patch(package, builder, scope):
        for name, member in builtins(package):
            if getattr(package, name) is member:  # not yet replaced, by the kernel that calls this function
                interpreter._patch_attr(package, name, member, builder, scope)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(interpreter, "_patch_builtin", patch)
        yield


@pytest.fixture
def ranks_as_threads(monkeypatch, tmp_path):
    monkeypatch.setattr(assembly, "ParallelExecutor", functools.partial(RanksAsThreads, tmp_path=tmp_path))


class FakeRunner:
    """A runner without a model: the next token is the sequence's length; `script` may give stop tokens instead."""

    def __init__(self, script=()):
        self.script = deque(script)
        self.steps = []

    def launch(self, step, copies):
        self.steps.append([(chunk.request.request_id, chunk.start, chunk.length) for chunk in step.chunks])
        sampled = [chunk for chunk in step.chunks if chunk.is_sampled]
        return Collected([(token,) for chunk in sampled for token in [self.token(chunk)] * chunk.request.width])

    def token(self, chunk):
        return SampledToken(self.script.popleft() if self.script else chunk.end)


@pytest.fixture
def fake_runner():
    return FakeRunner

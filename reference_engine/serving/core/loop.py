"""The engine process: loads a model, then receives commands and sends one report per step."""

import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.engine.assembly import build_engine
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.engine.memory import FreedMemory
from bakeoff.reference_engine.engine.resolution import resolve_config
from bakeoff.reference_engine.errors import EngineBugError, RequestError, UserMistakeError
from bakeoff.reference_engine.kernels.cpu import kernel_kind
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.sampling.grammar import Grammars
from bakeoff.reference_engine.serving.core.channel import Channel
from bakeoff.reference_engine.serving.core.compilation import Compilation
from bakeoff.reference_engine.serving.core.profiling import Profiler
from bakeoff.reference_engine.serving.core.step_log import StepLog
from bakeoff.reference_engine.serving.core.wire import (
    Add,
    Cancel,
    Command,
    Done,
    Facts,
    Failed,
    Ready,
    Refused,
    Reset,
    Start,
    StartProfile,
    StartStepLog,
    StopProfile,
    StopStepLog,
)

_log = logging.getLogger(__name__)

_CANCELLED = 499  # nginx's status for a disconnected client; nobody reads it

Calls = dict[type[Command], Callable[[], str]]
"""Handlers of commands that are answered with `Done`."""

Loader = Callable[[EngineConfig], tuple[BeamSearchEngine, Facts]]


def load(config: EngineConfig) -> tuple[BeamSearchEngine, Facts]:
    """Reads the checkpoint and builds the engine.

    Raises:
        CheckpointError, ConfigError: the model or the settings are at fault.
    """
    checkpoint = open_checkpoint(Path(config.model), config.load_format)
    grammars = Grammars(checkpoint.tokenizer, checkpoint.config.vocab_size, checkpoint.eos_token_ids)
    vocabulary = threading.Thread(target=grammars.build_vocabulary, name="vocabulary")
    vocabulary.start()
    engine, complete = build_engine(resolve_config(config, checkpoint.config), checkpoint, grammars)
    vocabulary.join()
    device, dtype = torch.device(complete.device), getattr(torch, complete.dtype)
    facts = Facts(
        config=complete,
        limits=engine.limits,
        eos_token_ids=checkpoint.eos_token_ids,
        torch_version=str(torch.__version__),
        kernels=kernel_kind(device, dtype),
        pid=os.getpid(),
    )
    return engine, facts


def serve_engine(sock: socket.socket, loader: Loader = load) -> None:
    """Serves one engine over a socket until the server closes it. Sends failures to the server, in one line.

    Args:
        sock: connected; the first message is `Start`.
        loader: builds the engine of a configuration; tests pass a fast one.
    """
    channel = Channel(sock)
    try:
        _serve(channel, loader)
    except ConnectionError:
        _log.info("the server has gone")
    except UserMistakeError as error:
        channel.send(Failed(is_users=True, message=str(error)))
    except Exception as error:  # noqa: BLE001 (every crash must reach the requests and /health)
        _log.exception("the engine crashed")
        message = f"the engine crashed ({type(error).__name__}: {error}); restart the server"
        channel.send(Failed(is_users=False, message=message))
    finally:
        channel.close()


def _serve(channel: Channel, loader: Loader) -> None:
    (start,) = channel.receive(wait=True)  # the server sends nothing more before `Ready`
    if not isinstance(start, Start):
        raise EngineBugError(f"the first command is {type(start).__name__}, not Start")
    engine, facts = loader(start.config)
    profiler = Profiler(facts.config.profile_dir)
    step_log = StepLog(facts.config.step_log_dir, engine.core)
    calls: Calls = {
        StartProfile: profiler.start, StopProfile: profiler.stop,
        StartStepLog: step_log.start, StopStepLog: step_log.stop,
    }  # fmt: skip
    freed = None if facts.config.device == "cuda" else FreedMemory()  # tensors on a GPU are not in the heap
    gc.collect()
    gc.freeze()  # excludes loaded objects from all later garbage collections
    compilation = Compilation(engine.grammars, channel.wake)
    try:
        channel.send(Ready(facts, engine.num_arrived))
        with torch.inference_mode():
            while True:
                for command in channel.receive(wait=not engine.has_work):
                    _follow(command, engine, channel, compilation, calls=calls, step_log=step_log)
                for request in compilation.take():
                    _add(request, engine, channel, step_log)
                # A step without work computes nothing, but reports that the last cancelled request has ended.
                with profiler.step():
                    report = engine.step()
                channel.send(report)
                if freed is not None and not engine.has_work:
                    freed.give_back()
    finally:
        compilation.close()
        step_log.close()
        engine.close()


def _follow(
    command: Command,
    engine: BeamSearchEngine,
    channel: Channel,
    compilation: Compilation,
    *,
    calls: Calls,
    step_log: StepLog,
) -> None:
    match command:
        case Add():
            for request in (sent.request() for sent in command.requests):
                if not compilation.hold(request):
                    _add(request, engine, channel, step_log)
        case Cancel():
            for request_id in command.request_ids:
                _cancel(request_id, engine, channel, compilation)
        case Reset():
            engine.reset_prefix_cache()
        case StartProfile() | StopProfile() | StartStepLog() | StopStepLog():
            _answer(command.call, calls[type(command)], channel)
        case Start():
            raise EngineBugError("a second Start")


def _add(request: Request, engine: BeamSearchEngine, channel: Channel, step_log: StepLog) -> None:
    try:
        engine.add(request)
        step_log.added(request, time.perf_counter())
    except RequestError as error:  # too many wait
        channel.send(Refused(request.request_id, str(error), error.status, error.param, error.code))


def _cancel(request_id: str, engine: BeamSearchEngine, channel: Channel, compilation: Compilation) -> None:
    if compilation.cancel(request_id):
        channel.send(Refused(request_id, "cancelled before it was queued", _CANCELLED, None, None))
    engine.cancel(request_id)


def _answer(call: int, act: Callable[[], str], channel: Channel) -> None:
    try:
        channel.send(Done(call, act()))
    except UserMistakeError as error:
        channel.send(Done(call, error=str(error)))

"""The engine process: loads a model, then receives commands and sends one report per step."""

import gc
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import torch

from reference_engine.engine.assembly import build_engine, resolve_config
from reference_engine.engine.beam_engine import BeamSearchEngine
from reference_engine.engine.config import EngineConfig
from reference_engine.engine.memory import FreedMemory
from reference_engine.engine.request import Request
from reference_engine.errors import EngineBugError, RequestError, UserMistakeError
from reference_engine.kernels.cpu import native_kernels
from reference_engine.loading.checkpoint import open_checkpoint
from reference_engine.serving.core.channel import Channel
from reference_engine.serving.core.profiling import Profiler
from reference_engine.serving.core.wire import (
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
    StopProfile,
)

_log = logging.getLogger(__name__)

Loader = Callable[[EngineConfig], tuple[BeamSearchEngine, Facts]]


def load(config: EngineConfig) -> tuple[BeamSearchEngine, Facts]:
    """The real loader: reads the checkpoint and builds the engine.

    Raises:
        CheckpointError, ConfigError: the model or the settings are at fault.
    """
    checkpoint = open_checkpoint(Path(config.model), config.load_format)
    engine, complete = build_engine(resolve_config(config, checkpoint.config), checkpoint)
    device, dtype = torch.device(complete.device), getattr(torch, complete.dtype)
    facts = Facts(
        config=complete,
        limits=engine.limits,
        eos_token_ids=checkpoint.eos_token_ids,
        torch_version=str(torch.__version__),
        kernels="torch" if native_kernels(device, dtype) is None else "native",
        pid=os.getpid(),
    )
    return engine, facts


def serve_engine(sock: socket.socket, loader: Loader = load) -> None:
    """Serves one engine over a socket until the other side hangs up. Failures are sent there, in one line.

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
    profiler, freed = Profiler(facts.config.profile_dir), FreedMemory()
    gc.collect()
    gc.freeze()  # keeps what is loaded out of every later garbage collection
    try:
        channel.send(Ready(facts, engine.num_arrived))
        with torch.inference_mode():
            while True:
                for command in channel.receive(wait=not engine.has_work):
                    _follow(command, engine, channel, profiler)
                # A step without work computes nothing, but reports that the last cancelled request is gone.
                channel.send(engine.step())
                freed.give_back()
    finally:
        engine.close()


def _follow(command: Command, engine: BeamSearchEngine, channel: Channel, profiler: Profiler) -> None:
    match command:
        case Add():
            for sent in command.requests:
                _add(sent.request(), engine, channel)
        case Cancel():
            for request_id in command.request_ids:
                engine.cancel(request_id)
        case Reset():
            engine.reset_prefix_cache()
        case StartProfile():
            _answer(command.call, profiler.start, channel)
        case StopProfile():
            _answer(command.call, profiler.stop, channel)
        case Start():
            raise EngineBugError("a second Start")


def _add(request: Request, engine: BeamSearchEngine, channel: Channel) -> None:
    try:
        engine.add(request)
    except RequestError as error:  # too many wait
        channel.send(Refused(request.request_id, str(error), error.status, error.param, error.code))


def _answer(call: int, act: Callable[[], str], channel: Channel) -> None:
    try:
        channel.send(Done(call, act()))
    except UserMistakeError as error:
        channel.send(Done(call, error=str(error)))

"""Engines: how each system is started, spoken to, watched and described. Knows only the value types of workloads."""

from engines.engine import Engine, Model
from engines.errors import EngineError
from engines.launcher import Launch, Server, attached, launched, pick_port
from engines.registry import ADAPTERS, check_options, engine

__all__ = [
    "ADAPTERS",
    "Engine",
    "EngineError",
    "Launch",
    "Model",
    "Server",
    "attached",
    "check_options",
    "engine",
    "launched",
    "pick_port",
]

"""Engines: how each system is started, spoken to, watched and described. Knows only the value types of workloads."""

from engines.deployment import Deployment
from engines.engine import Engine, Model, Setup
from engines.errors import EngineError
from engines.launcher import Launch, launched, pick_port
from engines.registry import adapters, check, dialect, engine
from engines.server import Access, Server, attached
from engines.spec import EngineSpec, Speculation

__all__ = [
    "Access",
    "Deployment",
    "Engine",
    "EngineError",
    "EngineSpec",
    "Launch",
    "Model",
    "Server",
    "Setup",
    "Speculation",
    "adapters",
    "attached",
    "check",
    "dialect",
    "engine",
    "launched",
    "pick_port",
]

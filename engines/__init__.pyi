from .access import Access
from .base import Engine, Model, Setup
from .deployment import Deployment
from .errors import EngineError
from .launcher import Launch, launched, pick_port
from .registry import adapter_names, check, dialect, engine, records_requests
from .server import Server, attached
from .spec import EngineSpec, Speculation

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
    "adapter_names",
    "attached",
    "check",
    "dialect",
    "engine",
    "launched",
    "pick_port",
    "records_requests",
]

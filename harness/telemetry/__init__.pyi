from .control import Sampler, sampler
from .orders import OwnProcesses, ServerPage

__all__ = ["OwnProcesses", "Sampler", "ServerPage", "sampler"]

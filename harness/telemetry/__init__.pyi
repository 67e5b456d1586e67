from .control import Sampler, sampler
from .orders import OwnProcesses, ServerPage, page_of

__all__ = ["OwnProcesses", "Sampler", "ServerPage", "page_of", "sampler"]

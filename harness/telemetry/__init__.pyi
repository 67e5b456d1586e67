from .control import Sampler, sampler
from .orders import ServerPage

__all__ = ["Sampler", "ServerPage", "sampler"]

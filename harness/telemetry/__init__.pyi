from .control import Sampler, sampler
from .orders import ExporterPage, OwnProcesses, ServerPage, page_of

__all__ = ["ExporterPage", "OwnProcesses", "Sampler", "ServerPage", "page_of", "sampler"]

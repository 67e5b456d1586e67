"""Common base of the adapters that serve GGUF files: llama-server and llama-cpp-python."""

from typing import ClassVar

from bakeoff.engines.errors import ModelNotFound
from bakeoff.engines.models.gguf import gguf_file
from bakeoff.engines.server_engine import ServerEngine
from bakeoff.engines.spec import Cannot, Spellings, one_of, switch


class GgufEngine(ServerEngine):
    """Serves one GGUF file; the file determines the type of the weights."""

    of_weights: ClassVar[Spellings] = {
        "dtype": one_of(("auto", "float32", "float16", "bfloat16"), switch(None)),
        "quantization": Cannot("it is in the GGUF file; set path in [model] to a quantised one"),
    }
    """Spellings of settings that the file determines; subclasses include them in ``spellings``."""

    def model_file(self) -> str:
        """Path of the GGUF file; see :func:`~bakeoff.engines.models.gguf.gguf_file`."""
        remote, path = self.setup.deployment.ssh, self.setup.model.path
        if remote and remote.model_path:
            return remote.model_path
        if path is None:
            raise ModelNotFound(f"engine '{self.adapter}' needs a model's files; set path in [model]")
        return str(gguf_file(path, self.setup.spec.dtype))

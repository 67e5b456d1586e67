"""What servers of GGUF files have in common, whichever program of llama.cpp's family they are."""

from typing import ClassVar

from engines.errors import ModelNotFound
from engines.models.gguf import gguf_file
from engines.server_engine import ServerEngine
from engines.spec import Cannot, Spellings, one_of, switch


class GgufEngine(ServerEngine):
    """Serves the GGUF of a checkpoint; types of weights are those of the file that is chosen."""

    of_weights: ClassVar[Spellings] = {
        "dtype": one_of(("auto", "float32", "float16", "bfloat16"), switch(None)),
        "quantization": Cannot("it is in the GGUF file; set path in [model] to a quantised one"),
    }
    """How both say what the file says already; a part of ``spellings``."""

    def model_file(self) -> str:
        """The GGUF that is served; see :func:`~engines.models.gguf.gguf_file`."""
        remote, path = self.setup.deployment.ssh, self.setup.model.path
        if remote and remote.model_path:
            return remote.model_path
        if path is None:
            raise ModelNotFound(f"engine '{self.adapter}' needs a model's files; set path in [model]")
        return str(gguf_file(path, self.setup.spec.dtype))

"""Any OpenAI-compatible server that runs already."""

from engines.dialects import Dialect, OpenAiDialect
from engines.engine import Setup
from engines.errors import BadOption
from engines.server_engine import ServerEngine


class OpenAiEngine(ServerEngine):
    """An address. Lengths are upper bounds: the official format cannot force them."""

    adapter = "openai"

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:  # noqa: ARG003
        """Its own."""
        return OpenAiDialect()

    @classmethod
    def check(cls, setup: Setup) -> None:
        """It must run somewhere; see :class:`~engines.server_engine.ServerEngine`."""
        if setup.deployment.url is None:
            raise BadOption(f"engine '{cls.adapter}' needs the url of a server that runs already")
        super().check(setup)

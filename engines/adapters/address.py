"""What adapters of servers that are only reached, never launched, have in common."""

from engines.base import Setup
from engines.errors import BadOption
from engines.server_engine import ServerEngine


class AddressEngine(ServerEngine):
    """An address that somebody else serves."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """It must run somewhere; see :class:`~engines.server_engine.ServerEngine`."""
        if setup.deployment.url is None:
            raise BadOption(f"engine '{cls.adapter}' needs the url of a server that runs already")
        super().check(setup)

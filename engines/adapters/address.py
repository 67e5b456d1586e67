"""Common base of the adapters of running servers, which Bakeoff never launches."""

from bakeoff.engines.base import Setup
from bakeoff.engines.errors import BadOption
from bakeoff.engines.server_engine import ServerEngine


class AddressEngine(ServerEngine):
    """A running server at an address."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Also requires an address."""
        if setup.deployment.address is None:
            raise BadOption(f"engine '{cls.adapter}' needs the url of a server that runs already")
        super().check(setup)

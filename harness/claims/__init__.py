"""Claims: well-known statements about inference, re-measured on one's own machine; see docs/claims.md."""

from bakeoff.harness.claims.catalogue import load_catalogue
from bakeoff.harness.claims.run import claims

__all__ = ["claims", "load_catalogue"]

"""Claims: well-known statements about inference, re-measured on one's own machine; see docs/claims.md."""

from benchmarks.claims.interpreter.catalogue import load_catalogue
from benchmarks.claims.interpreter.run import claims

__all__ = ["claims", "load_catalogue"]

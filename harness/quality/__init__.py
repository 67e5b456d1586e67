"""Correct while fast: a few answers of each trial, given under load, beside what the same weights say in float32.

``choice`` says which, ``answers`` turns raw streams into tokens, ``scorer`` runs ``python -m reference_engine score``
as a process of its own, and ``check`` puts them together when an engine has been stopped.
"""

from harness.quality.check import check_quality
from harness.quality.choice import asks_logprobs

__all__ = ["asks_logprobs", "check_quality"]

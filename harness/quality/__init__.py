"""Correct while fast: a few answers of each trial, given under load, beside what the same weights say in float32.

``answers`` turns raw streams into tokens, ``scorer`` runs ``python -m reference_engine score`` as a process of its own,
and ``check`` chooses answers and puts all together when an engine has been stopped.
"""

from harness.quality.check import asks_logprobs, check_quality

__all__ = ["asks_logprobs", "check_quality"]

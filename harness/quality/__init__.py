"""Output quality under load: compares sampled answers of each trial with the same weights computed in float32.

``answers`` turns raw streams into tokens, ``scorer`` runs ``python -m reference_engine score`` as a process of its own,
and ``check`` samples the answers and stores the result once the engine has been stopped.
"""

from harness.quality.check import asks_logprobs, check_quality

__all__ = ["asks_logprobs", "check_quality"]

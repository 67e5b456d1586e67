"""Output quality under load: compares sampled answers of each trial with the same weights computed in float32.

``answers`` turns raw streams into tokens, ``scorer`` runs ``python -m bakeoff.reference_engine score`` as a process of
its own, and ``check`` samples the answers and stores the result once the engine has been stopped.

``evaluation`` is about a model outside any run: it pools the lines of ``python -m bakeoff.reference_engine evaluate``,
and ``prompt_logprobs`` asks a server for what that process cannot compute.
"""

from bakeoff.harness.quality.check import asks_logprobs, check_quality

__all__ = ["asks_logprobs", "check_quality"]

"""The command ``bakeoff profile``."""

from typing import TYPE_CHECKING

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.measured import exit_code, measured, show_measured
from bakeoff.harness.cli.options import (
    DEFAULT_OUT,
    Out,
    Source,
)

if TYPE_CHECKING:
    from bakeoff.results import Run


def profile(
    experiment: Source,
    *,
    kernels: bool = False,
    out: Out = DEFAULT_OUT,
) -> "Run":
    """Measure where the latency comes from, from the client's queue to the last token.

    Runs one plain and one profiled trial of each engine and level; in the latter the reference engine records its
    steps, and vLLM exports a span of each request. Prints the parts of each request's latency and the bottleneck, and
    writes one Perfetto trace per profiled trial, for ui.perfetto.dev. Other engines get a plain trial.

    Examples
    --------
    bakeoff profile experiment.toml
    bakeoff profile experiment.toml --kernels
    bakeoff profile experiment.toml --json

    Parameters
    ----------
    experiment
        TOML file, as for bakeoff run; its repeats and its comparison of answers are left out.
    kernels
        Also record the engine's kernels for a second after each profiled trial, and add them to the trace.
    out
        Parent of the new run folder, or a store's address, such as s3://bucket/runs: the run is measured in runs/, and
        copied there while it goes on.
    """
    import msgspec

    from bakeoff.harness.experiment.config import QualityConfig
    from bakeoff.harness.experiment.reading import loaded_experiment, profiling

    loaded = profiling(loaded_experiment(experiment))
    return measured(msgspec.structs.replace(loaded, repeats=1, quality=QualityConfig(samples=0), kernels=kernels), out)


COMMANDS = [Command("profile", command(profile, show_measured, exit_code), Title.MEASURE, 50)]

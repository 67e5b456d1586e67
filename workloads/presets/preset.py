"""Presets: one kind of traffic as data.

The built-in presets are TOML files beside this module. ``bakeoff workloads fit`` writes such a file from a trace, and
the workload ``preset`` replays any of them.
"""

from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.workloads.arrivals import Arrival, MultiTenant, arrival
from bakeoff.workloads.distributions import Distribution, Fixed
from bakeoff.workloads.errors import BadOption, WorkloadError
from bakeoff.workloads.options import parsed_toml, typed_options
from bakeoff.workloads.text import Style


class NaturalArrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The preset's own arrival process, which ``arrival = "workload"`` replays."""

    process: str
    """Name of an arrival process, or ``at-once``: all sessions are waiting when the load begins."""
    rate_per_s: float = 1.0
    """Sessions per second."""
    options: dict[str, Any] = {}
    """Options of the process."""

    def made(self) -> Arrival | None:
        """The process; None for ``at-once``."""
        return None if self.process == "at-once" else arrival(self.process, self.rate_per_s, self.options)

    def tenants(self) -> MultiTenant:
        """The process, as one whose arrivals belong to tenants."""
        process = self.made()
        assert isinstance(process, MultiTenant), "Preset checks this for tenant_spread"
        return process


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """System prompts that sessions share."""

    tokens: int
    groups: int = 1
    """Number of different system prompts."""
    skew: float = 1.0
    """Zipf exponent: the popularity of the k-th prompt is proportional to k^-skew; 0 is uniform."""

    def __post_init__(self) -> None:
        if self.groups < 1 or self.tokens < 1:
            raise ValueError("shared.groups and shared.tokens must be at least 1")


class Documents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Documents before each question, as in retrieval-augmented generation."""

    pool: int
    """Number of documents in the corpus."""
    tokens: Distribution
    """Length of a document."""
    per_request: Distribution
    """Number of documents per prompt."""
    skew: float = 1.0
    """Zipf exponent, as in :class:`Shared`."""


class SubAgents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sub-agents that a session's main agent starts, each with a conversation of its own.

    The main agent's next request waits for all that it has started, except those in the background, and appends their
    last answers instead of :attr:`Preset.append`.
    """

    start_share: float
    """Fraction of the main agent's answers after which it starts some; never after its last one."""
    at_once: Distribution
    """Number that it starts at once."""
    input: Distribution
    """Tokens of a sub-agent's first prompt, including template and system prompt."""
    output: Distribution
    """Tokens of each answer."""
    last_output: Distribution | None = None
    """Tokens of a sub-agent's last answer, its result; None: as of the others."""
    turns: Distribution = Fixed(1.0)
    """Requests of each sub-agent."""
    append: Distribution = Fixed(0.0)
    """Tokens that a later turn adds to the sub-agent's previous prompt and its answer."""
    think_s: Distribution = Fixed(0.0)
    """Seconds from the end of a sub-agent's answer to its next request."""
    start_pause_s: Distribution = Fixed(0.0)
    """Seconds from the end of the main agent's answer to a sub-agent's first request."""
    join_pause_s: Distribution = Fixed(0.0)
    """Seconds from the end of the last sub-agent's answer to the main agent's request that waits for it."""
    background_share: float = 0.0
    """Fraction of the sub-agents that the main agent does not wait for."""
    shared: Shared | None = None
    """System prompts of sub-agents, one for each kind; None: each sub-agent has one of its own."""

    def __post_init__(self) -> None:
        if not 0 < self.start_share <= 1:
            raise ValueError(f"start_share must be above 0 and at most 1, not {self.start_share}")
        if not 0 <= self.background_share <= 1:
            raise ValueError(f"background_share must lie between 0 and 1, not {self.background_share}")


class Anchor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expected range of a figure, from real traffic; ``bakeoff workloads show`` checks it."""

    metric: str
    """A figure of :class:`~bakeoff.workloads.profile.WorkloadProfile`."""
    low: float
    high: float
    source: str
    """Source of the figure."""


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of traffic; lengths are in tokens and times in seconds, unscaled."""

    summary: str
    """One line of description."""
    source: str
    """Source of the figures, with its licence if it requires attribution."""
    arrival: NaturalArrival
    input: Distribution
    """Tokens of a session's first prompt, including template and system prompt but not documents."""
    output: Distribution
    """Tokens of each answer."""
    last_output: Distribution | None = None
    """Tokens of a session's last answer, such as a report; None: as of the others."""
    correlation: float = 0.0
    """Spearman's correlation between the input and the output of a request."""
    turns: Distribution = Fixed(1.0)
    """Requests per session."""
    append: Distribution = Fixed(0.0)
    """Tokens that a later turn adds to the previous prompt and its answer."""
    think_s: Distribution = Fixed(0.0)
    """Seconds from the end of an answer to the session's next request."""
    shared: Shared | None = None
    sub_agents: SubAgents | None = None
    documents: Documents | None = None
    tenant_spread: float | None = None
    """Only for arrival processes with tenants: each tenant has its own system prompt and a factor on its lengths whose
    logarithm has this standard deviation."""
    style: Style = "prose"
    json_schema: bool = False
    """Whether every answer must follow a JSON schema, which is in the system prompt."""
    max_input_tokens: int = 131_072
    """A prompt that would grow longer is compacted, as agents do: its conversation continues with a summary."""
    anchors: tuple[Anchor, ...] = ()

    def __post_init__(self) -> None:
        if not -1 <= self.correlation <= 1:
            raise ValueError(f"correlation must lie between -1 and 1, not {self.correlation}")
        if self.json_schema and self.shared is None:
            raise ValueError("json_schema needs shared, because the schema is in the system prompt")
        if self.tenant_spread is not None and self.arrival.process != "multi-tenant":
            raise ValueError("tenant_spread needs arrival.process = 'multi-tenant'")
        if self.documents is not None and self.documents.pool < 1:
            raise ValueError("documents.pool must be at least 1")


def preset_names() -> tuple[str, ...]:
    """Names of the built-in presets."""
    files = resources.files("bakeoff.workloads.presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def read_preset(path: Path) -> Preset:
    """Read a preset from a file.

    Raises:
        BadOption: the file is not TOML, or has an invalid key or value.
        WorkloadError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"preset {path} cannot be read: {error}") from error
    return preset_from(text, f"preset {path}")


def built_in(name: str) -> Preset:
    """A built-in preset."""
    text = resources.files("bakeoff.workloads.presets").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return preset_from(text, f"preset '{name}'")


def preset_from(text: str, owner: str) -> Preset:
    """Parse a preset from TOML.

    Raises:
        BadOption: as :func:`read_preset`.
    """
    preset = typed_options(Preset, parsed_toml(text, owner, "a preset", BadOption), owner, BadOption)
    preset.arrival.made()  # reports an unknown process or option now
    return preset

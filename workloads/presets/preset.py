"""What a preset is: the shape of one kind of traffic, as data.

The presets that come with Bakeoff are TOML files beside this module; ``bakeoff workloads fit`` writes the same kind of
file from a trace, and the workload ``preset`` replays any of them.
"""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from workloads.arrivals import Arrival, MultiTenant, arrival
from workloads.distributions import Distribution, Fixed
from workloads.errors import BadOption, WorkloadError
from workloads.options import typed_options
from workloads.text import Style


class NaturalArrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How sessions arrive by themselves: what ``arrival = "workload"`` replays."""

    process: str
    """Name of an arrival process, or ``at-once``: all of them wait when the load begins."""
    rate_per_s: float = 1.0
    """Sessions per second."""
    options: dict[str, Any] = {}
    """The process's own."""

    def made(self) -> Arrival | None:
        """The process; None for ``at-once``."""
        return None if self.process == "at-once" else arrival(self.process, self.rate_per_s, self.options)

    def tenants(self) -> MultiTenant:
        """The process, of which each arrival is somebody's."""
        made = self.made()
        assert isinstance(made, MultiTenant), "a preset with tenant_spread has been checked for this"
        return made


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A system prompt that several sessions have in common."""

    tokens: int
    groups: int = 1
    """How many different ones there are."""
    skew: float = 1.0
    """Popularity of the k-th group is proportional to k to the power of minus this; 0 makes them alike."""


class Documents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Pieces of a corpus that stand before each question, as retrieval puts them there."""

    pool: int
    """Documents in the corpus."""
    tokens: Distribution
    """Length of a document."""
    per_request: Distribution
    """How many stand in one prompt."""
    skew: float = 1.0
    """Popularity, as in :class:`Shared`."""


class Anchor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of the real thing that the preset meets; ``bakeoff workloads show`` checks it."""

    metric: str
    """A figure of :class:`~workloads.profile.WorkloadProfile`."""
    low: float
    high: float
    source: str
    """Where the figure comes from."""


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of traffic; lengths are tokens and times seconds, both of the real thing."""

    summary: str
    """One line: what it is."""
    source: str
    """What the figures come from, with the licence where it asks to be named."""
    arrival: NaturalArrival
    input: Distribution
    """A session's first prompt as the engine counts it: template and system prompt included, documents on top."""
    output: Distribution
    """Each answer."""
    correlation: float = 0.0
    """Spearman's, between the input and the output of a request."""
    turns: Distribution = Fixed(1.0)
    """Requests of a session."""
    append: Distribution = Fixed(0.0)
    """What a later turn's prompt adds to the last prompt and its answer."""
    think_s: Distribution = Fixed(0.0)
    """From the end of an answer to the session's next request."""
    shared: Shared | None = None
    documents: Documents | None = None
    tenant_spread: float | None = None
    """Set where the arrival process has tenants: each has a system prompt of its own and lengths that differ by a
    factor whose logarithm has this standard deviation."""
    style: Style = "prose"
    json_schema: bool = False
    """Every answer must follow a JSON schema, which stands in the system prompt."""
    max_input_tokens: int = 131_072
    """A prompt that would grow longer is compacted, as agents do: the session goes on with a summary."""
    anchors: tuple[Anchor, ...] = ()

    def __post_init__(self) -> None:
        if not -1 <= self.correlation <= 1:
            raise ValueError(f"correlation must lie between -1 and 1, not {self.correlation}")
        if self.json_schema and self.shared is None:
            raise ValueError("json_schema needs shared: the schema stands in the system prompt")
        if self.tenant_spread is not None and self.arrival.process != "multi-tenant":
            raise ValueError("tenant_spread needs arrival.process = 'multi-tenant'")
        if self.documents is not None and self.documents.pool < 1:
            raise ValueError("documents.pool must be at least 1")
        if self.shared is not None and (self.shared.groups < 1 or self.shared.tokens < 1):
            raise ValueError("shared.groups and shared.tokens must be at least 1")


def preset_names() -> tuple[str, ...]:
    """The presets that come with Bakeoff."""
    files = resources.files("workloads.presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def read_preset(path: Path) -> Preset:
    """A preset from a file.

    Raises:
        BadOption: it is no TOML, or holds a key or a value that is wrong.
        WorkloadError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"preset {path} cannot be read: {error}") from error
    return preset_from(text, f"preset {path}")


def built_in(name: str) -> Preset:
    """A preset that comes with Bakeoff."""
    text = resources.files("workloads.presets").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return preset_from(text, f"preset '{name}'")


def preset_from(text: str, owner: str) -> Preset:
    """A preset from TOML.

    Raises:
        BadOption: as :func:`read_preset`.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadOption(f"{owner} is not TOML: {error}") from error
    preset = typed_options(Preset, data, owner, BadOption)
    preset.arrival.made()  # refuses an unknown process or option now
    return preset

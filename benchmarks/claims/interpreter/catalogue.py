"""Claim files: the built-in catalogue, and folders of the user."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.workloads.options import parsed_toml, typed_options
from benchmarks.claims.interpreter.claim import Claim, checked
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.trials import published_digest

CATALOGUE = Path(__file__).parent / "catalogue"
EXPERIMENTS = "experiments"


class Entry(msgspec.Struct, frozen=True):
    """A claim and its file.

    Attributes:
        name: of the file, without ``.toml``.
        claim: its content.
        folder: of the file.
    """

    name: str
    claim: Claim
    folder: Path

    def experiment(self, run: str) -> dict[str, Any]:
        """Data of an experiment that the claim refers to by name: from the claim's folder, else from the built-in one.

        Raises:
            BadClaim: there is no such file, or it is not TOML.
        """
        places = [self.folder / EXPERIMENTS, CATALOGUE.parent / EXPERIMENTS]
        path = next((file for place in places if (file := place / f"{run}.toml").is_file()), None)
        if path is None:
            raise BadClaim(f"{self.name}.toml: run '{run}' is not a file of {places[0]}")
        return _toml(path)

    @property
    def digest(self) -> str:
        """SHA-256 of the claim, the experiments that it refers to, and the figures of published runs.

        Raises:
            BadClaim: an experiment is missing or not TOML.
        """
        cases = self.claim.cases
        runs = sorted({side.run for case in cases if case.experiment for side in case.experiment.sides})
        published = sorted({side.run for case in cases if case.published for side in case.published.sides})
        figures = [published_digest(run) for run in published]
        content = msgspec.to_builtins(self.claim), [self.experiment(run) for run in runs], *figures
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def load_catalogue(folders: Sequence[Path] = (), names: Sequence[str] = ()) -> list[Entry]:
    """Claims by name; those of later folders replace earlier ones.

    Args:
        folders: of claim files, besides the built-in one.
        names: of the wanted claims; empty for all.

    Raises:
        BadClaim: a file is malformed, or a name unknown.
    """
    entries: dict[str, Entry] = {}
    for folder in (CATALOGUE, *folders):
        if not folder.is_dir():
            raise BadClaim(f"{folder} is not a folder; give one of claim files with --catalogue")
        entries |= {path.stem: _entry(path) for path in sorted(folder.glob("*.toml"))}
    if unknown := [name for name in names if name not in entries]:
        raise BadClaim(f"there is no claim '{unknown[0]}'; see bakeoff lab claims list")
    return [entry for name, entry in sorted(entries.items()) if not names or name in names]


def experiment_of(data: dict[str, Any], run: str) -> Experiment:
    """The experiment of a run.

    Raises:
        BadExperiment, EngineError, WorkloadError: it is invalid.
    """
    return experiment_from(data, f"{EXPERIMENTS}/{run}.toml")


def _entry(path: Path) -> Entry:
    claim = typed_options(Claim, _toml(path), path.name, BadClaim)
    return Entry(path.stem, checked(claim, path.name), path.parent)


def _toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadClaim(f"{path} cannot be read: {error}") from error
    return parsed_toml(text, str(path), "a claim", BadClaim)

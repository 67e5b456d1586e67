"""Content of the report page: its head, and the sections that the modules of ``sections`` declare."""

import functools
from typing import Any

import msgspec
from markupsafe import Markup

from bakeoff.declared import declared
from bakeoff.results.records import RunStatus
from bakeoff.results.report import sections
from bakeoff.results.report.foreign_load import foreign_load_text
from bakeoff.results.report.offline import fragment
from bakeoff.results.report.section import Section
from bakeoff.results.report.standing import Standing, failures_text, standing, status_text, why_not_all
from bakeoff.results.report.verdict import VerdictLine, verdict
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import listed, machine_text, moment_text

_STATUS = {
    RunStatus.COMPLETE: "Every planned trial ended.",
    RunStatus.RUNNING: "The run is still running; this report may change.",
    RunStatus.INTERRUPTED: "The run was interrupted; trials that ended are complete, the others are missing.",
    RunStatus.FAILED: "The run failed; trials that ended are complete, the others are missing.",
    RunStatus.INCOMPLETE: "The run's process disappeared before it finished; some trials are missing.",
}

_CLASSES = {Standing.WHOLE: "complete", Standing.PARTLY_VALID: "partly", Standing.BROKEN: "incomplete"}


class Drawn(msgspec.Struct, frozen=True):
    """A section as it stands on the page."""

    id: str
    title: str
    folded: bool
    body: Markup


class Page(msgspec.Struct, frozen=True):
    """The head of the page, its sections in order, and the data for its script."""

    name: str
    status: str
    standing: str
    """Class of the line with the status."""
    status_meaning: str
    failure: str | None
    verdict: VerdictLine
    facts: list[tuple[str, str]]
    notes: list[str]
    sections: list[Drawn]
    island: dict[str, Any]


@functools.cache
def all_sections() -> tuple[Section, ...]:
    """The sections that the modules of :mod:`bakeoff.results.report.sections` declare, in order."""
    found = declared(sections.__name__, sections.__path__, "SECTIONS")
    return tuple(sorted((section for module in found for section in module.SECTIONS), key=lambda one: one.place))


def page_of(run: Run) -> Page:
    """Build the page of a run."""
    manifest = run.manifest
    built = [(section, content) for section in all_sections() if (content := section.content(run))]
    return Page(
        name=manifest.name,
        status=_banner(run),
        standing=_CLASSES[standing(run)],
        status_meaning=_meaning(run),
        failure=manifest.failure,
        verdict=verdict(run),
        facts=_facts(run),
        notes=run.declared,
        sections=[
            Drawn(section.id, section.title, section.folded, fragment(section.template, content))
            for section, content in built
        ],
        # The cells are for readers of the page's source.
        island={key: data for section, content in built for key, data in section.island(content).items()}
        | {"cells": run.cells},
    )


def _meaning(run: Run) -> str:
    """What the status leaves out: failed requests, and why trials are INVALID."""
    failures = failures_text(run)
    meaning = why_not_all(run) or _STATUS[run.status]
    return f"{failures}. {meaning}" if failures else meaning


def _banner(run: Run) -> str:
    if run.status in {RunStatus.COMPLETE, RunStatus.INCOMPLETE}:
        return status_text(run)
    return f"INCOMPLETE ({run.status.value})"


def _facts(run: Run) -> list[tuple[str, str]]:
    manifest = run.manifest
    return [
        ("engines", listed(engines_of(run))),
        ("machine", machine_text(manifest)),
        ("commit", manifest.git_commit or "– (not in a git checkout)"),
        ("started", moment_text(manifest.created_utc)),
        ("ended", moment_text(manifest.ended_utc) if manifest.ended_utc else "– (not recorded)"),
        ("foreign load", foreign_load_text(run) or "– (nothing was sampled)"),
        *[("rules of play", line) for line in run.off_rules],
        ("trials", f"{len(run.counted)} of {run.planned} ended"),
        ("bakeoff", manifest.bakeoff_version),
    ]

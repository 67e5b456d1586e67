"""Pictures of the README and of the documentation: ``python -m docs.pictures``.

Each picture is taken in the light and in the dark theme. The report is that of two runs on this disk; the dashboard and
the gate show runs of simulated engines (:mod:`bakeoff.harness.virtual`); a workload profile needs no engine. The script
also writes each picture's tag and caption into the pages that have its markers. It needs the environment of ``make
test`` and its Chromium.
"""

import argparse
import base64
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from playwright.sync_api import Browser, FloatRect

from bakeoff.harness.traffic.profile import write_page
from bakeoff.harness.traffic.profile.selection import profile_selection, select
from bakeoff.results import Run, load
from bakeoff.results.text.format import machine_text
from docs.simulated_nights import CANDIDATE, MAIN, simulate_gates, simulate_nights
from tests.results.browsing import launched, only_page
from tests.results.dashboards import dashboard

ROOT = Path(__file__).parents[1]
THEMES = ("light", "dark")
MAX_BYTES = 150_000
_WIDTH, _PHONE_WIDTH = 1120, 390
_MARGIN = 12
_SCALE = 1.5
_QUALITIES = (0.95, 0.9, 0.85, 0.8)
_PRESET, _SESSIONS = "agentic-tools", 2_000
_ORIGIN = re.compile(r"\n(?P<machine>[^\n;]+?) \([^)]*\); (?P<date>[\d-]+)[^`]*commit\s`(?P<commit>\w{7})")
_PICTURE = re.compile(r"(<!-- picture: (\S+) -->\n).*?(<!-- end of picture -->)", re.DOTALL)

_FIRST_TIMELINE = """() => {
  const [figure] = [...document.querySelectorAll("#timelines figure")].filter(figure => figure.offsetHeight);
  const bottom = figure.getBoundingClientRect().bottom;
  for (const element of document.querySelectorAll("#timelines *"))
    if (element.getBoundingClientRect().top >= bottom) element.style.display = "none";
}"""
_HIDE = "selectors => document.querySelectorAll(selectors).forEach(element => element.style.display = 'none')"
_BOUNDS = """selectors => {
  const boxes = [...document.querySelectorAll(selectors)].map(element => element.getBoundingClientRect())
    .filter(box => box.width && box.height);
  const [left, top] = [Math.min(...boxes.map(box => box.left)), Math.min(...boxes.map(box => box.top))];
  const [right, bottom] = [Math.max(...boxes.map(box => box.right)), Math.max(...boxes.map(box => box.bottom))];
  return {x: left + scrollX, y: top + scrollY, width: right - left, height: bottom - top};
}"""
_WEBP = """async ([png, quality]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One picture, without its theme.

    Attributes:
        name: of its files and markers.
        url: of the page.
        shown: selector; the picture holds all matching elements.
        alt: the picture in words.
        caption: hardware, date and commit; says so if engines are simulated.
        hidden: selector of elements to leave out.
        script: JavaScript function, called before the picture is taken.
        for_phones: whether a second picture is taken of the page as a phone shows it.
    """

    name: str
    url: str
    shown: str
    alt: str
    caption: str
    hidden: str = ""
    script: str = ""
    for_phones: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    runs_help = "with its report.html; without it its pictures stay"
    parser.add_argument("--demo-run", type=Path, help=f"run of bakeoff demo, {runs_help}")
    parser.add_argument("--run", type=Path, help=f"run of make bench-bakeoff, {runs_help}")
    parser.add_argument("--profiled-run", type=Path, help=f"run of bakeoff profile, {runs_help}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures", help="folder of the pictures")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="pictures to take; default: all")
    options = parser.parse_args()
    out = options.out.resolve()
    demo_run, run, profiled_run = (
        path.resolve() if path else None for path in (options.demo_run, options.run, options.profiled_run)
    )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        runs, profile = Path("runs"), Path("profile.html")  # the dashboard's page shows the path as given
        simulate_nights(runs)
        gate = simulate_gates(runs)
        write_page(profile_selection(select(_PRESET, []), 1, _SESSIONS), profile)
        with dashboard(runs) as served, launched() as browser:  # in this order: a browser holds the thread's event loop
            served.settle()
            pictures = [
                *([_demo(demo_run)] if demo_run else []),
                *(_report(run) if run else []),
                *_dashboard(served.address),
                _gate(served.address, gate),
                _profile(profile.resolve().as_uri()),
                *([_attribution(profiled_run)] if profiled_run else []),
            ]
            if options.only:
                pictures = [picture for picture in pictures if picture.name in options.only]
            sizes = [
                _take(browser, picture, theme, out, for_phones=for_phones)
                for picture in pictures
                for theme in THEMES
                for for_phones in (False, True)[: 1 + picture.for_phones]
            ]
    _describe({picture.name: picture for picture in pictures}, out)
    sys.exit(max(sizes) > MAX_BYTES)


def _origin(run: Path) -> re.Match[str]:
    origin = _ORIGIN.search((run / "README.md").read_text(encoding="utf-8"))
    if origin is None:
        raise ValueError(f"{run}/README.md names no machine, date and commit")
    return origin


def _report(run: Path) -> Iterator[Picture]:
    origin = _origin(run)
    url = (run / "report.html").resolve().as_uri()
    source = f"{origin['machine']}, no GPU; {origin['date']}, commit {origin['commit']}."
    yield Picture(
        name="report-frontier",
        url=url,
        shown="#frontier",
        alt="Throughput of five servers against the speed that each user gets, at one, four and eight users",
        caption=f"The frontier. SmolLM2-135M in bfloat16; {source}",
    )
    yield Picture(
        name="report-timeline",
        url=url,
        shown="#timelines",
        alt="One trial: a bar for each request, and below it memory, CPU, batch and KV cache on the same time axis",
        caption=f"The timeline of one trial of the reference engine. SmolLM2-135M in bfloat16, eight users; {source}",
        script=_FIRST_TIMELINE,
    )


def _demo(folder: Path) -> Picture:
    return Picture(
        name="demo",
        url=(folder / "report.html").resolve().as_uri(),
        shown="table.summary",
        hidden="#summary p.why, #summary details",  # they begin within the margin
        alt="Latency, token rate and memory of two servers with four users: every trial and its 95 % interval",
        caption=f"What `bakeoff demo` shows. SmolLM2-135M in float32, four users; {_measured_on(folder)}",
        for_phones=True,
    )


def _measured_on(folder: Path) -> str:
    """Machine, date and commit of a run that is not in the repository."""
    manifest = load(folder).manifest
    machine = machine_text(manifest).removesuffix(f" ({manifest.host})")
    return f"{machine}, no GPU; {manifest.created_utc[:10]}, commit {(manifest.git_commit or '')[:7]}."


def _attribution(folder: Path) -> Picture:
    return Picture(
        name="attribution",
        url=(folder / "report.html").resolve().as_uri(),
        shown="#attribution",
        hidden="#attribution .why, #attribution details",
        alt="Mean E2E and TTFT at two loads as bars of their parts, and a table of the parts of each",
        caption=f"SmolLM2-135M in bfloat16; {_measured_on(folder)}",
    )


def _dashboard(address: str) -> Iterator[Picture]:
    caption = f"Simulated engines, no hardware; drawn {_now()}."
    yield Picture(
        name="dashboard-runs",
        url=f"{address}/",
        shown="header, main",
        hidden="tbody tr:nth-child(n + 9)",
        alt="List of runs with engines, model, load, result, trials, commit and machine, below rows of filters",
        caption=f"The list of runs. {caption}",
    )
    yield Picture(
        name="dashboard-history",
        url=f"{address}/history?name=nightly&engine=engine-b",
        shown="header, main",
        alt="History of an engine over many runs: a step, with the commits between which it lies, and its charts",
        caption=f"The history of one engine, which became slower. {caption}",
    )


def _gate(address: str, run: Run) -> Picture:
    a, b = (f"{run.manifest.run_id}@{label}" for label in (MAIN, CANDIDATE))
    return Picture(
        name="gate",
        url=f"{address}/compare?a={a}&b={b}",
        shown="header, main",
        alt="A gate's verdict, and the ratio of every metric with its interval on one axis with the band",
        caption=f"The candidate takes 8 % longer. Simulated engines, no hardware; drawn {_now()}.",
    )


def _profile(url: str) -> Picture:
    return Picture(
        name="profile",
        url=url,
        shown="header, #lengths, #prefixes",
        hidden="#arrivals, #sessions, #lengths .wide, #prefixes dl, header ul",
        alt="Workload profile: distributions of prompt and answer lengths, and the hit rate against the cache size",
        caption=f"The preset {_PRESET}: {_SESSIONS:,} sessions, no engine and no hardware; drawn {_now()}.",
    )


def _now() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"{datetime.now(UTC):%Y-%m-%d} at commit {commit}"


def _take(browser: Browser, picture: Picture, theme: str, folder: Path, *, for_phones: bool) -> int:
    """Write one file; returns its size in bytes."""
    width = _PHONE_WIDTH if for_phones else _WIDTH
    page = only_page(browser, theme=theme, width=width, scale=_SCALE)
    page.goto(picture.url)
    if picture.script:
        page.evaluate(picture.script)
    if picture.hidden:
        page.evaluate(_HIDE, picture.hidden)
    if any(str(Path.home()) in text for text in page.locator(picture.shown).all_inner_texts()):
        raise ValueError(f"{picture.name}: the picture names the home directory")
    box = page.evaluate(_BOUNDS, picture.shown)
    left = max(0, box["x"] - _MARGIN)
    top = max(0, box["y"] - _MARGIN)
    right = min(width, box["x"] + box["width"] + _MARGIN)
    clip = FloatRect(x=left, y=top, width=right - left, height=box["y"] + box["height"] + _MARGIN - top)
    path = folder / f"{picture.name}-{'phone-' * for_phones}{theme}.webp"
    path.write_bytes(_webp(browser, page.screenshot(full_page=True, clip=clip)))
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes")
    return size


def _webp(browser: Browser, png: bytes) -> bytes:
    """Encode at the best quality that keeps the file small."""
    page, encoded = only_page(browser), base64.b64encode(png).decode()
    files = (base64.b64decode(page.evaluate(_WEBP, [encoded, quality])) for quality in _QUALITIES)
    file = b""
    for file in files:
        if len(file) <= MAX_BYTES:
            break
    return file


def _describe(pictures: dict[str, Picture], folder: Path) -> None:
    """Write tags and captions between the markers of every page."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        link_folder = Path(os.path.relpath(folder.resolve(), page.parent))
        described = _PICTURE.sub(
            lambda match: (
                f"{match[1]}{_tag(pictures[match[2]], link_folder)}{match[3]}" if match[2] in pictures else match[0]  # noqa: B023
            ),
            text,
        )
        if described != text:
            page.write_text(described, encoding="utf-8")


def _tag(picture: Picture, folder: Path) -> str:
    light, dark = (f"{folder}/{picture.name}-{theme}.webp" for theme in THEMES)
    phone_light, phone_dark = (f"{folder}/{picture.name}-phone-{theme}.webp" for theme in THEMES)
    narrow = "(max-width: 600px)"
    phones = (
        f'  <source media="{narrow} and (prefers-color-scheme: dark)" srcset="{phone_dark}">\n'
        f'  <source media="{narrow}" srcset="{phone_light}">\n'
    )
    return (
        "<picture>\n"
        f"{phones if picture.for_phones else ''}"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'  <img alt="{picture.alt}" src="{light}">\n'
        "</picture>\n\n"
        f"<sub>{picture.caption}</sub>\n"
    )


if __name__ == "__main__":
    main()

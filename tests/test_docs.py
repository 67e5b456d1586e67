"""The documents stay true: links resolve, every key and command is described, and described ones exist."""

import contextlib
import inspect
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import cyclopts
import msgspec
import pandas as pd
import pytest

from bakeoff.engines import Deployment, EngineSpec, Speculation, adapter_names
from bakeoff.engines.addresses import Address, Balance, Role
from bakeoff.engines.deployment import Container, Ssh
from bakeoff.harness.cli import commands_of, make_app
from bakeoff.harness.experiment.config import (
    ClassWorkload,
    ClientConfig,
    EngineConfig,
    Experiment,
    ModelConfig,
    QualityConfig,
    TrafficClass,
    TrialConfig,
    WorkloadConfig,
)
from bakeoff.harness.experiment.faults import Fault
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.prices import Prices, TokenPrices
from bakeoff.results.records import Cache, FaultAction, Load, Slo
from bakeoff.results.statistics.interval import log_t_interval
from bakeoff.results.text.format import interval_text
from bakeoff.workloads import ARRIVALS, workload_names
from docs.generate import TABLES, generated, llms
from docs.publishing import first_page_table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
DOCUMENTS = sorted({*ROOT.glob("*.md"), *PAGES})
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_BLOCK = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?(?:[\w./]+/)?bakeoff ((?:.*\\\n)*.*)$", re.MULTILINE)
_PICTURE = re.compile(
    r'<!-- picture: (\S+) -->\n<picture>\n((?: *<source .*>\n)+) *<img alt="(.+)" src="(.+)">\n</picture>\n\n'
    r"<sub>(.+)</sub>\n<!-- end of picture -->"
)
_MODULE = re.compile(
    r'-m"?,? "?((?:bakeoff|benchmarks|tests|engines|harness|reference_engine|results|workloads)\b(?:\.\w+)*)'
)
_QUOTED_COMMAND = re.compile(r"`bakeoff ([^`]+)`")
_SUBSTITUTION = re.compile(r"\$\([^)]*\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path):
    links = _LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_picture_is_small_and_has_two_themes_alternative_text_and_an_origin():
    shown: set[Path] = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        pictures = _PICTURE.findall(text)
        assert text.count("<picture>") == text.count("<!-- picture:") == len(pictures), page
        for name, sources, alt, light, caption in pictures:
            files = {(page.parent / file).resolve() for file in (*re.findall(r'srcset="(.+)"', sources), light)}
            sizes = ("", "-phone") if "max-width" in sources else ("",)
            assert {file.name for file in files} == {
                f"{name}{size}-{theme}.webp" for size in sizes for theme in ("dark", "light")
            }
            assert len(alt.split()) > 5
            assert re.search(r"(?:cores|no hardware).* 20\d\d-\d\d-\d\d\b.* commit [0-9a-f]{7}\.", caption), caption
            shown |= files
    files = set((ROOT / "docs/pictures").iterdir())
    assert files == shown
    assert [file.name for file in files if file.stat().st_size > 150_000] == []


def test_the_contents_for_language_models_are_up_to_date():
    assert (ROOT / "docs/llms.txt").read_text(encoding="utf-8") == llms(), "run make docs"


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_what_follows_from_the_code_is_up_to_date(page: str):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == generated(text), "run make docs"


def test_every_generated_table_is_on_one_page():
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    assert sorted(name for text in pages for name in re.findall(r"<!-- ([\w ]+): generated", text)) == sorted(TABLES)


def test_modules_that_commands_start_exist():
    """Pages of results are left out: they show what was started then."""
    texts = [page.read_text(encoding="utf-8") for page in DOCUMENTS if "results" not in page.parts]
    named = {name for text in texts for name in _MODULE.findall(text)}
    assert "bakeoff.reference_engine" in named
    installed_or_of_the_clone = ("bakeoff", "benchmarks", "tests")
    assert {name for name in named if not name.startswith(installed_or_of_the_clone) or not find_spec(name)} == set()


def test_what_reliability_is_held_to_is_there():
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == list(range(1, 48))
    named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", text)
    missing = [
        f"{path}::{name}" for path, name in named if f"def {name}" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_every_key_of_the_experiment_file_is_described():
    text = (ROOT / "docs/experiment.md").read_text(encoding="utf-8")
    kinds: tuple[type[msgspec.Struct], ...] = (
        Experiment, EngineConfig, ModelConfig, WorkloadConfig, TrialConfig, ClientConfig,
        QualityConfig, Load, Slo, TrafficClass, ClassWorkload, Prices, TokenPrices, EngineSpec,
        Speculation, Container, Ssh, Address, Fault,
    )  # fmt: skip
    keys = {key for kind in kinds for key in kind.__struct_fields__}
    assert {key for key in keys if f"`{key}`" not in text and f"[{key}]" not in text} == set()
    text += (ROOT / "docs/workloads.md").read_text(encoding="utf-8")
    for name in (*adapter_names(), *workload_names(), *ARRIVALS, *Role, *Balance):
        assert f"`{name}`" in text


def test_defaults_in_the_experiment_page_are_those_of_the_code():
    text = (ROOT / "docs/experiment.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", text, flags=re.MULTILINE))
    trial, experiment = TrialConfig(), {"repeats": 3, "seed": 1}
    fields = {**msgspec.structs.asdict(trial), **msgspec.structs.asdict(ClientConfig()), **experiment}
    fields |= msgspec.structs.asdict(QualityConfig()) | {"timeout_s": trial.request_timeout_s}
    fields |= {"weight": TrafficClass("a", ClassWorkload("chat")).weight}
    fields |= {"share": Fault(FaultAction.SLOW, 0.0).share, "replicas": Deployment().replicas}
    assert {name: float(value) for name, value in rows.items()} == {name: float(fields[name]) for name in rows}
    assert {*msgspec.structs.asdict(trial), "workers", "max_error_share"} - {"cache", "max_requests"} <= set(rows)
    assert "| `max_requests` | – |" in text
    assert f"| `cache` | `{trial.cache.value}` |" in text
    assert {cache.value for cache in Cache if f"`{cache.value}`" not in text} == set()


def test_architecture_names_every_package_of_the_reference_engine_and_every_seam():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / "reference_engine").glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in text} == set()
    for path in re.findall(r"`((?:engines|harness|workloads)(?:\.\w+)+)`", text):
        module, _, name = path.rpartition(".")
        imported = __import__(module, fromlist=[name])
        assert hasattr(imported, name), path


def command_lines(text: str) -> Iterator[tuple[list[str], bool]]:
    """Arguments of each ``bakeoff`` line of a page, and whether they are complete: not in prose, nor where one is …."""
    for block in _BLOCK.findall(text):
        for line in _COMMAND.findall(block):
            words = shlex.split(_SUBSTITUTION.sub("WORD", line.replace("\\\n", " ")), comments=True)
            words = list(takewhile(lambda word: word not in {">", "&", "||"}, words))
            yield [word for word in words if word != "…"], "…" not in words
    for quoted in _QUOTED_COMMAND.findall(_BLOCK.sub("", text)):
        yield shlex.split(quoted), False


def test_command_lines_are_found():
    text = "```\n$ .venv/bin/bakeoff run \\\n  my.toml  # all…\nbakeoff bench … > file\n```\nThen `bakeoff report` it."
    assert list(command_lines(text)) == [(["run", "my.toml"], True), (["bench"], False), (["report"], False)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_parse(page: Path):
    app = make_app()
    for words, is_whole in command_lines(page.read_text(encoding="utf-8")):
        with contextlib.suppress(*[] if is_whole else [cyclopts.MissingArgumentError]):
            app.parse_args(words, exit_on_error=False, print_error=False)


def test_make_targets_of_the_readme_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = subprocess.run(["make", "-qp"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for target in re.findall(r"make ([a-z]+)\b", readme):
        assert f"\n{target}:" in targets or target == "bench"


FIRST_PAGE_RUN = "cpu-bakeoff"


PUBLISHED = sorted(trials.parent for trials in (ROOT / "docs/results").glob("*/trials.csv"))


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda path: path.name)
def test_published_tables_are_those_of_the_published_trials(folder: Path):
    """A folder's page follows from its own data, and the list of results shows the same of one run."""
    table = published_table(folder / "README.md", folder.name)
    if folder.name == FIRST_PAGE_RUN:
        assert published_table(ROOT / "docs/results/index.md", folder.name) == first_page_table(table)
    rows = table.splitlines()[2:]
    shown = {row.split(" | ")[1]: [] for row in rows}
    for row in rows:
        engine, latency, rate = (row.split(" | ")[column] for column in (1, 3, 6))
        shown[engine].append((latency, rate))
    trials = pd.read_csv(folder / "trials.csv")
    trials = trials[trials.verdict == "VALID"]
    for engine, rows in shown.items():
        of_engine = trials[trials.engine == engine]
        expected = [
            tuple(
                interval_text(CATALOGUE[name], log_t_interval(list(of_engine[of_engine.load == load][name])))
                for name in ("ttft_p50_s", "output_tokens_per_s")
            )
            for load in dict.fromkeys(of_engine.load)
        ]
        assert sorted(rows) == sorted(expected)


def published_table(page: Path, name: str) -> str:
    text = page.read_text(encoding="utf-8")
    marker = f"<!-- results: {name} -->\n"
    return text[text.index(marker) + len(marker) : text.index("<!-- end of results -->")]


def test_pages_say_so_where_the_weights_of_an_engine_are_zeros():
    """vLLM's dummy weights are mostly zeros in fewer bits, and zeros draw less power."""
    results = ROOT / "docs/results"
    pages = [page for page in results.glob("*/README.md") if "--load-format dummy --hf-overrides" in page.read_text()]
    assert pages
    assert all(
        "mostly zeros" in page.read_text(encoding="utf-8") for page in [*pages, results / "h100-offline/README.md"]
    )


def test_every_name_on_the_way_of_a_request_exists():
    """docs/engine.md names code; a name with a dot is a member, and some file of the engine defines each part."""
    text = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    sources = [path for kind in ("*.py", "*.cpp") for path in (ROOT / "reference_engine").rglob(kind)]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    names = {name for quoted in re.findall(r"`([A-Za-z_][\w.]*)`(?! \[)", text) for name in quoted.split(".")}
    quoted_with_links = re.findall(r"`([\w.]+)`\s+\(\[`([\w/.]+)`\]", text)
    assert len(quoted_with_links) > 20
    for quoted, place in quoted_with_links:
        file = (ROOT / "reference_engine" / place).read_text(encoding="utf-8")
        for name in quoted.split("."):
            assert re.search(rf"(class|def) {name}\b|^\s+{name}:", file, re.MULTILINE), f"{name} is not in {place}"
    ignored = {"py", "md", "tests", "n"}
    assert {name for name in names - ignored if not re.search(rf"\b{name}\b", code)} == set()
    assert len(text.split()) < 1_000  # two pages


LONG_SENTENCE, README_WORDS, DEFINITIONS_WORDS = 45, 800, 5000
_NO_SENTENCE = re.compile(
    r"```.*?```|<!--.*?-->|<picture>.*?</picture>|<sub>.*?</sub>|^\|.*?$", re.DOTALL | re.MULTILINE
)


def long_sentences(text: str) -> list[str]:
    """The sentences of a text that have too many words; tables and blocks of code have none."""
    prose = re.sub(r"\]\([^)]*\)", "]", _NO_SENTENCE.sub("", text))
    blocks = re.split(r"\n\s*\n|\n(?=\s*[-#])", prose)
    sentences = (sentence for block in blocks for sentence in re.split(r"(?<=[.:?!])\s", block))
    return [sentence for sentence in sentences if len(sentence.split()) >= LONG_SENTENCE]


def _of_parameters(text: str) -> str:
    """A docstring without the examples, each parameter a block of its own."""
    without = re.sub(r"Examples\n-+\n.*?(?=\n\n|\Z)", "", text, flags=re.DOTALL)
    return re.sub(r"^(?=\w+$)", "\n", without, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(ROOT.glob("docs/tutorials/*.md"))], ids=lambda path: path.stem
)
def test_no_sentence_of_the_first_pages_is_long(page: Path):
    assert long_sentences(page.read_text(encoding="utf-8")) == []


def test_no_sentence_of_a_help_is_long():
    helps = {name: inspect.getdoc(command.default_command) or "" for name, command in commands_of(make_app())}
    assert {name: found for name, text in helps.items() if (found := long_sentences(_of_parameters(text)))} == {}
    assert long_sentences("word " * LONG_SENTENCE) != []


@pytest.mark.parametrize(("page", "most"), [("README.md", README_WORDS), ("docs/definitions.md", DEFINITIONS_WORDS)])
def test_a_page_has_no_more_words_than_its_reader_has_time(page: str, most: int):
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= most

"""What leads to the repository from outside agrees: addresses, install lines, and the long description of a package."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bakeoff.installation import REPOSITORY

ROOT = Path(__file__).parents[1]
SUFFIXES = {"", ".cff", ".md", ".py", ".toml", ".yml", ".yaml"}
_PLACE = re.compile(r"(?:https://github\.com/|uses: )([\w.-]+/bakeoff)(?![\w-])")
_INSTALLS = re.compile(r"(?:pip|pipx|uv tool) install (?!-e |-r )(?:--\S+ )*[\"']?[^`\n]*?bakeoff[^`\n]*|uvx [^`\n]*")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SUBSTITUTIONS = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
RAW = f"{REPOSITORY}/raw/main/"
SHOWN = f"{REPOSITORY}/blob/main/"


def texts() -> dict[str, str]:
    """Files that say where Bakeoff is, by their path: those of the root, its documents, pipelines and own modules."""
    folders = [ROOT.glob("*"), (ROOT / "docs").rglob("*"), (ROOT / ".github").rglob("*"), (ROOT / "src").glob("*/*.py")]
    files = (path for paths in folders for path in paths if path.is_file() and path.suffix in SUFFIXES)
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace") for path in files}


def long_description() -> str:
    """README.md as the package has it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for substitution in SUBSTITUTIONS:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    return text


def test_all_files_agree_on_the_place_of_the_repository():
    named = {path: set(_PLACE.findall(text)) for path, text in texts().items()}
    place = REPOSITORY.removeprefix("https://github.com/")
    assert {path: places for path, places in named.items() if places - {place}} == {}
    assert sum(map(bool, named.values())) > 10


def test_one_command_names_the_owner_everywhere(tmp_path: Path):
    """On a copy of what a checkout tracks."""
    place = REPOSITORY.removeprefix("https://github.com/").encode()
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    naming = [
        path for path in tracked.split("\0") if path and (ROOT / path).is_file() and place in (ROOT / path).read_bytes()
    ]
    assert len(naming) > 10
    for path in {*naming, "Makefile", "src/bakeoff/installation.py"}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    for argv in (["git", "init", "-q"], ["git", "add", "-A"], ["make", "owner", "NAME=acme-2"]):
        subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True)
    assert [path for path in naming if place in (tmp_path / path).read_bytes()] == []
    assert "https://github.com/acme-2/bakeoff" in (tmp_path / "src/bakeoff/installation.py").read_text()


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}" for name in (
    "ci/Jenkinsfile", "ci/gitlab-ci.yml", "ci/nightly-gpu.yml", "install.md"))])  # fmt: skip
def test_install_lines_name_the_repository(page: str):
    """Nobody has reserved the name on a package index: a line without the repository would install a stranger's."""
    lines = _INSTALLS.findall((ROOT / page).read_text(encoding="utf-8"))
    assert [line for line in lines if f"git+{REPOSITORY}" not in line] == []
    assert lines


def test_actions_are_pinned_by_commit():
    used = [one for text in texts().values() for one in re.findall(r"uses: ([\w./-]+@\S+)", text)]
    assert len(used) > 20
    assert [one for one in used if not re.search(r"@[0-9a-f]{40}$|/bakeoff@v\d", one)] == []


def test_the_lock_and_examples_have_the_versions_of_ci():
    locked = set(re.findall(r"^([\w.-]+==[^ ;]+)", (ROOT / "core.lock").read_text(encoding="utf-8"), re.MULTILINE))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition(" ")[0].lower().replace("_", "-") for line in lines}
    names = {pin.partition("==")[0] for pin in pinned}
    assert [pin for pin in locked if pin.lower() not in pinned and pin.partition("==")[0].lower() in names] == []
    commits: dict[str, set[str]] = {}
    for text in texts().values():
        for action, commit in re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40})", text):
            commits.setdefault(action, set()).add(commit)
    assert {action: each for action, each in commits.items() if len(each) > 1} == {}


def test_the_lock_holds_every_dependency_of_the_core_by_hash():
    lock = (ROOT / "core.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w.-]+)==([^ ;]+).*\\\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^\S+==", lock, re.MULTILINE))
    for needed in map(Requirement, PROJECT["project"]["dependencies"]):
        versions = [version for name, version in pins if canonicalize_name(name) == canonicalize_name(needed.name)]
        assert versions, needed
        assert all(version in needed.specifier for version in versions), needed


def test_the_long_description_links_to_files_of_the_repository():
    text = long_description()
    addresses = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert len(addresses) > 30
    assert [address for address in addresses if not address.startswith("https://")] == []
    paths = [address.removeprefix(RAW).removeprefix(SHOWN) for address in addresses if address.startswith(REPOSITORY)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    pictures = [address for address in addresses if address.endswith(".webp")]
    assert len(pictures) == 4
    assert [picture for picture in pictures if not picture.startswith(RAW)] == []


def test_the_declared_versions_of_python_are_those_that_ci_tests():
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert declared == ci["jobs"]["test"]["strategy"]["matrix"]["python"]


def test_pip_is_installed_where_a_tool_would_leave_it_out():
    """bakeoff.engines.models.wheels starts it; the environments that uv makes have none of their own."""
    assert [one for one in PROJECT["project"]["optional-dependencies"]["engine"] if one.startswith("pip>")] != []


def test_only_the_step_that_publishes_may_prove_its_identity():
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    allowed = {name: job.get("permissions", {}).get("id-token") for name, job in release["jobs"].items()}
    assert {job for job, may in allowed.items() if may} == {"publish", "site"}, "the package index and the pages"
    assert release["permissions"] == {"contents": "read"}
    publish = release["jobs"]["publish"]
    assert (publish["needs"], publish["environment"]) == (["build", "image"], "pypi")
    assert [step for step in publish["steps"] if "run" in step] == []

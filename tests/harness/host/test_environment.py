"""What a run records about the code under test."""

import subprocess
from pathlib import Path

import pytest

from bakeoff.harness import version
from bakeoff.harness.host.environment import git_commit, source
from bakeoff.results.log.run_log import Source


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_checkout_in_which_it_was_started(tmp_path: Path) -> None:
    assert source(tmp_path, {}) is None
    git(tmp_path, "init", "-b", "topic")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert source(tmp_path, {}) == Source(commit, "topic")
    (tmp_path / "file").write_text("2")
    assert source(tmp_path, {}) == Source(f"{commit}+", "topic")
    git(tmp_path, "checkout", "--detach")
    assert source(tmp_path, {}) == Source(f"{commit}+", None)


def test_a_package_in_the_venv_of_another_project_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-b", "topic")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    monkeypatch.setattr(version, "__file__", str(tmp_path / ".venv/site-packages/bakeoff/harness/version.py"))
    assert git_commit() is None
    (tmp_path / "harness").mkdir()
    (tmp_path / "pyproject.toml").write_text('project = { name = "bakeoff" }')
    monkeypatch.setattr(version, "__file__", str(tmp_path / "harness/version.py"))
    assert git_commit() == git(tmp_path, "rev-parse", "--short=12", "HEAD")


def test_ci_knows_better(tmp_path: Path) -> None:
    github = {"GITHUB_SHA": "0123456789abcdef", "GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"}
    assert source(tmp_path, github) == Source("0123456789ab", "main")
    assert source(tmp_path, github | {"GITHUB_HEAD_REF": "topic"}) == Source("0123456789ab", "topic")
    gitlab = {"CI_COMMIT_SHA": "fedcba9876543210", "CI_COMMIT_REF_NAME": "v1"}
    assert source(tmp_path, gitlab) == Source("fedcba987654", "v1")

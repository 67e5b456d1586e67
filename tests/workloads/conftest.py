"""Fixtures of the workloads' tests: four kinds of small tokenizer, and the real one."""

from pathlib import Path

import pytest

from bakeoff.workloads import Tokenizer
from tests.workloads.small_tokenizers import PLAIN, checkpoint


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level BPE with a ChatML template."""
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same tokenizer with one token for each digit, as in SmolLM2."""
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("digits"), digits=True))


@pytest.fixture(scope="session")
def merging(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same tokenizer with a template of plain words; tokens merge across their edges."""
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("merging"), template=PLAIN))


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same tokenizer, which also has words without the space before them, as every large vocabulary does."""
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("bare"), bare=True, merges=800))


@pytest.fixture(scope="session")
def smollm2(model_folder: Path) -> Tokenizer:
    """The real SmolLM2 tokenizer."""
    return Tokenizer(model_folder)

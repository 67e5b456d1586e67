"""The seam's value types."""

import msgspec
import pytest

from engines import EngineError, Model
from engines.engine import base_url
from engines.errors import BadOption


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1//", "http://127.0.0.1:8000"),
        ("https://api.example.org/openai/v1", "https://api.example.org/openai"),
        ("https://v1.example.org/v1beta", "https://v1.example.org/v1beta"),
    ],
)
def test_an_address_loses_the_version_that_every_path_begins_with(url: str, base: str) -> None:
    assert base_url(url) == base


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "ftp://x", "", "file:///etc/passwd"])
def test_an_address_that_is_not_http_is_the_users_mistake(url: str) -> None:
    with pytest.raises(BadOption) as caught:
        base_url(url)
    assert str(caught.value) == f"url must begin with http:// or https://, not '{url}'"


def test_a_model_is_stored_with_what_is_known_of_it() -> None:
    assert msgspec.json.encode(Model("smol")) == b'{"name":"smol","path":null,"sha256":null}'


def test_an_error_carries_the_last_lines_of_the_log_where_there_are_any() -> None:
    assert EngineError("x").log_tail == ()
    assert EngineError("x", ["a", "b"]).log_tail == ("a", "b")

"""Proxies of the environment, which loads do not take."""

import pytest

from bakeoff.engines.proxies import ignored_proxy


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_only_a_proxy_that_others_would_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ignored_proxy("https://api.example/v1") is None
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy.example:3128")
    assert ignored_proxy("https://api.example/v1") == "proxy.example:3128", "without the password"
    assert ignored_proxy("http://api.example/v1") is None
    monkeypatch.setenv("NO_PROXY", "api.example")
    assert ignored_proxy("https://api.example/v1") is None


def test_a_proxy_without_a_scheme_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    assert ignored_proxy("http://api.example") == "proxy.example:3128"


def test_a_proxy_that_is_no_address_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://[::1")
    assert ignored_proxy("http://api.example") == "of the environment, which is no address,"
    monkeypatch.delenv("http_proxy")
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.example:1080")
    assert ignored_proxy("http://api.example") == "proxy.example:1080"

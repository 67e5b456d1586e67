"""Presets survive being written to a file."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.workloads.distributions import Exponential, Fixed, Lognormal, Mixture, Part, Quantiles, Uniform, Weibull
from bakeoff.workloads.presets import Anchor, Documents, NaturalArrival, Preset, Shared, built_in, preset_names
from bakeoff.workloads.presets.preset import preset_from, read_preset
from bakeoff.workloads.presets.toml import preset_toml

NUMBERS = st.floats(0.1, 1e9) | st.integers(1, 10**9).map(float)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


@st.composite
def quantiles(draw: st.DrawFn) -> Quantiles:
    inner = sorted(draw(st.sets(st.floats(0.0001, 0.9999), max_size=20)))
    values = sorted(draw(st.lists(NUMBERS, min_size=len(inner) + 2, max_size=len(inner) + 2)))
    return Quantiles((0.0, *inner, 1.0), tuple(values))


SIMPLE = st.one_of(
    quantiles(),
    NUMBERS.map(Fixed),
    st.builds(lambda low, more: Uniform(low, 2 * (low + more)), NUMBERS, NUMBERS),
    st.builds(lambda mu, sigma, most: Lognormal(mu, sigma, min=0.5, max=1 + most), st.floats(-9, 9), NUMBERS, NUMBERS),
    st.builds(lambda mean: Exponential(mean, min=1.0), NUMBERS),
    st.builds(Weibull, NUMBERS, NUMBERS),
)
DISTRIBUTIONS = st.recursive(
    SIMPLE,
    lambda inner: st.lists(st.builds(Part, NUMBERS, inner), min_size=1, max_size=3).map(
        lambda parts: Mixture(tuple(parts))
    ),
    max_leaves=4,
)


def as_read(distribution: Any) -> Any:
    """An option as it is read from a file."""
    return msgspec.json.decode(msgspec.json.encode(distribution))


ARRIVALS = st.one_of(
    st.builds(NaturalArrival, st.just("poisson"), NUMBERS),
    st.just(NaturalArrival("at-once")),
    st.builds(
        lambda rate, on, off, spread: NaturalArrival(
            "onoff", rate, {"on_s": as_read(on), "off_s": as_read(off), "spread": spread}
        ),
        NUMBERS,
        quantiles(),
        quantiles(),
        st.floats(0, 3),
    ),
    st.builds(
        lambda rate, profile: NaturalArrival("diurnal", rate, {"profile": profile, "period_s": 100}),
        NUMBERS,
        st.lists(NUMBERS, min_size=1, max_size=40),
    ),
)


@settings(derandomize=True)
@given(
    st.builds(
        Preset,
        summary=TEXTS,
        source=TEXTS,
        arrival=ARRIVALS,
        input=DISTRIBUTIONS,
        output=DISTRIBUTIONS,
        correlation=st.floats(-1, 1),
        turns=DISTRIBUTIONS,
        think_s=DISTRIBUTIONS,
        shared=st.none() | st.builds(Shared, st.integers(1, 10**6), st.integers(1, 100), st.floats(0, 3)),
        documents=st.none() | st.builds(Documents, st.integers(1, 100), DISTRIBUTIONS, DISTRIBUTIONS, st.floats(0, 3)),
        style=st.sampled_from(["prose", "code"]),
        max_input_tokens=st.integers(1, 10**7),
        anchors=st.lists(st.builds(Anchor, TEXTS, NUMBERS, NUMBERS, TEXTS), max_size=3).map(tuple),
    ),
    st.lists(TEXTS, max_size=2),
)
def test_what_is_written_is_read_back_as_it_was(preset: Preset, comments: list[str]):
    assert preset_from(preset_toml(preset, comments), "written") == preset


@pytest.mark.parametrize("name", preset_names())
def test_our_own_presets_survive_too(name: str, tmp_path: Path):
    preset = built_in(name)
    file = tmp_path / "written.toml"
    file.write_text(preset_toml(preset, ["of the house"]), encoding="utf-8")
    assert read_preset(file) == preset


def test_the_file_is_for_people_to_read():
    preset = built_in("chat")
    text = preset_toml(preset, ["first line", "second\nline"])
    assert text.startswith('# first line\n# secondline\n\nsummary = "')
    assert '\n[arrival]\nprocess = "drift"\n' in text
    long = [line for line in text.splitlines() if len(line) > 112]
    assert all(line.startswith("source = ") for line in long)
    assert "2, 8, 18, 31, 161," in text


@pytest.mark.parametrize("text", ['"', "\\", "\x00\x1f\x7f", "é\n\t", "a = 'b'", "\u2028", ""])
def test_any_text_can_be_a_summary(text: str):
    preset = Preset(text, text, NaturalArrival("poisson"), Fixed(8.0), Fixed(8.0))
    assert tomllib.loads(preset_toml(preset, [text]))["summary"] == text


def test_what_toml_has_no_form_for_is_refused():
    preset = Preset("", "", NaturalArrival("diurnal", 1.0, {"swing": None}), Fixed(8.0), Fixed(8.0))
    with pytest.raises(ValueError, match="TOML cannot express None"):
        preset_toml(preset)

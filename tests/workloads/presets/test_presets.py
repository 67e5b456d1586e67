"""Presets are data: each file loads and meets its anchors; errors in a file are reported."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff.workloads import BadOption, Preset, PresetTraffic, Seed, UnknownWorkload, WorkloadError, workload
from bakeoff.workloads.presets import built_in, preset_names
from bakeoff.workloads.presets.preset import preset_from, read_preset
from bakeoff.workloads.presets.schemas import json_schema
from bakeoff.workloads.profile import profile_workload

SAMPLES = {
    "agent-coding": (100, 100),
    "agentic-tools": (100, 100),
    "chat": (1000, 200_000),
    "code-completion": (1000, 100_000),
    "long-context-chat": (2000, 2000),
    "multi-turn": (300, 300),
    "rag": (300, 300),
    "reasoning": (2000, 2000),
    "summarisation": (500, 20_000),
}
"""Sessions and arrivals; 500 by default, and 2,000 and 200,000 in `bakeoff workloads show`."""

GOOD = """
summary = "short"
source = "nobody"
[arrival]
process = "poisson"
[input]
family = "uniform"
low = 40
high = 60
[output]
family = "uniform"
low = 4
high = 6
"""


def test_the_documents_name_every_preset() -> None:
    page = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")
    assert [name for name in preset_names() if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_says_what_it_is_and_where_it_is_from(name: str) -> None:
    preset = built_in(name)
    assert preset.summary[0].islower()
    assert not preset.summary.endswith(".")
    assert "synthetic" in preset.source or "(" in preset.source, "a licence, or the word"
    assert len(preset.anchors) >= 2
    assert all(anchor.low < anchor.high and anchor.source for anchor in preset.anchors)
    note, *bounded = PresetTraffic(name, preset).notes()
    assert bool(bounded) == preset.json_schema, "a schema makes lengths upper bounds"
    assert note == f"{name}: {preset.summary}; {preset.source}; text synthetic"


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_every_preset_meets_its_anchors(name: str) -> None:
    sessions, arrivals = SAMPLES.get(name, (500, 500))
    profile = profile_workload(name, workload(name, {}), Seed.of("1"), sessions=sessions, arrivals=arrivals)
    assert [anchor.metric for anchor in profile.anchors] == [anchor.metric for anchor in built_in(name).anchors]
    assert [anchor for anchor in profile.anchors if not anchor.met] == []


def test_a_preset_of_ones_own_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD, encoding="utf-8")
    made = workload("preset", {"path": str(file), "scale": 0.5})
    assert isinstance(made, PresetTraffic)
    assert (made.name, made.scale, made.preset) == ("mine", 0.5, read_preset(file))
    assert made.notes() == ["mine: short; nobody; text synthetic; every length × 0.5 to suit this machine"]


def test_a_preset_survives_being_written_down() -> None:
    for name in preset_names():
        preset = built_in(name)
        assert msgspec.json.decode(msgspec.json.encode(preset), type=Preset) == preset


BAD = [
    ("correlation = 1.5\n" + GOOD, "correlation must lie between -1 and 1, not 1.5"),
    ("json_schema = true\n" + GOOD, "json_schema needs shared, because the schema is in the system prompt"),
    ("tenant_spread = 0.3\n" + GOOD, "tenant_spread needs arrival.process = 'multi-tenant'"),
    (GOOD + "[shared]\ntokens = 9\ngroups = 0\n", "shared.groups and shared.tokens must be at least 1"),
    (GOOD + "[shared]\ntokens = 0\n", "shared.groups and shared.tokens must be at least 1"),
    (
        GOOD + "[documents]\npool = 0\ntokens = {family = 'fixed', value = 3}\n"
        "per_request = {family = 'fixed', value = 3}\n",
        "documents.pool must be at least 1",
    ),
    (GOOD.replace("low = 40", "lo = 40"), "input has no option 'lo'; did you mean 'low'? known: low, high"),
    (GOOD.replace('"uniform"', '"unifrm"', 1), "input needs family, one of "),
    ("sumary = 'x'\n" + GOOD, "has no option 'sumary'; did you mean 'summary'?"),
    (GOOD.replace('process = "poisson"', 'process = "poison"'), "unknown arrival process 'poison'; did you mean"),
    (GOOD.replace('summary = "short"', ""), "Object missing required field `summary`"),
    ("summary = \n" + GOOD, "is not TOML: "),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_preset_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises((BadOption, UnknownWorkload)) as caught:
        preset_from(text, "preset x")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_preset_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"preset .*none\.toml cannot be read: .*No such file"):
        read_preset(tmp_path / "none.toml")
    (tmp_path / "image.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_preset(tmp_path / "image.toml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "workload 'chat': scale must be above 0 and at most 16, not 0.0"),
        ({"scale": 17}, "workload 'chat': scale must be above 0 and at most 16, not 17.0"),
        ({"scale": "1"}, "workload 'chat': Expected `float`, got `str` - at `$.scale`"),
        ({"max_input_tokens": 0}, "workload 'chat': max_input_tokens must be at least 1, not 0"),
        ({"scales": 1}, "workload 'chat' has no option 'scales'; did you mean 'scale'? known: scale, "),
        ({"api": "talk"}, "workload 'chat': Invalid enum value 'talk' - at `$.api`"),
        ({"preset": {}}, "workload 'chat' has no option 'preset'; "),
    ],
)
def test_options_out_of_range_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        workload("chat", options)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value).splitlines()) == 1


def test_schemas_are_different_and_the_same_everywhere() -> None:
    schemas = [json_schema(number) for number in range(200)]
    assert len(set(schemas)) == 200
    for text in schemas:
        schema: dict[str, Any] = msgspec.json.decode(text)
        assert schema["type"] == "object"
        assert 5 <= len(schema["properties"]) <= 12
        assert schema["required"] == list(schema["properties"])
    assert schemas[7] == json_schema.__wrapped__(7)

"""Options from files: each mistake is one line that names the place and the nearest valid name."""

from typing import Any

import msgspec
import pytest

from bakeoff.workloads.options import nearest, typed_options

ALL = "known: scale, label, slo, main, levels, shape, shapes"


class Mistake(Exception):
    """An error class chosen by the owner."""


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ttft_s: float = 1.0


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    concurrency: int = 1


class Circle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="circle"):
    radius: float = 1.0


class Square(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="square"):
    side: float = 1.0
    inner: Circle | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scale: float = 1.0
    label: str | None = None
    slo: Slo | None = None
    main: Slo = Slo()
    levels: list[Level] = []
    shape: Circle | Square | None = None
    shapes: list[Circle | Square] = []

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError("scale must be above 0")


def read(data: dict[str, Any]) -> Options:
    return typed_options(Options, data, "workload 'test'", Mistake)


def test_plain_data_becomes_the_typed_object_with_nested_ones() -> None:
    data = {"scale": 2, "slo": {"ttft_s": 0.5}, "levels": [{"concurrency": 4}, {}]}
    assert read(data) == Options(2.0, None, Slo(0.5), Slo(), [Level(4), Level(1)])
    assert read({}) == Options()


def test_a_kind_is_chosen_by_its_name() -> None:
    data = {
        "shape": {"kind": "square", "side": 2, "inner": {"kind": "circle", "radius": 3}},
        "shapes": [{"kind": "circle"}, {"kind": "square"}],
    }
    assert read(data) == Options(shape=Square(2, Circle(3)), shapes=[Circle(), Square()])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"scal": 1}, f"workload 'test' has no option 'scal'; did you mean 'scale'? {ALL}"),
        ({"zzz": 1}, f"workload 'test' has no option 'zzz'; {ALL}"),
        ({"slo": {"tft_s": 1}}, "workload 'test': slo has no option 'tft_s'; did you mean 'ttft_s'? known: ttft_s"),
        ({"main": {"tft_s": 1}}, "workload 'test': main has no option 'tft_s'; did you mean 'ttft_s'? known: ttft_s"),
        ({"levels": [{}, {"concurency": 1}]}, (
            "workload 'test': levels[1] has no option 'concurency'; did you mean 'concurrency'? known: concurrency"
        )),
        ({"scale": "big"}, "workload 'test': Expected `float`, got `str` - at `$.scale`"),
        ({"scale": -1}, "workload 'test': scale must be above 0"),
        ({"levels": 3}, "workload 'test': Expected `array`, got `int` - at `$.levels`"),
        ({"levels": [3]}, "workload 'test': Expected `object`, got `int` - at `$.levels[0]`"),
        ({"shape": {"side": 1}}, "workload 'test': shape needs kind, one of circle, square, not None"),
        ({"shape": {"kind": "cube"}}, "workload 'test': shape needs kind, one of circle, square, not 'cube'"),
        ({"shape": {"kind": "circle", "side": 1}}, "workload 'test': shape has no option 'side'; known: radius"),
        ({"shapes": [{"kind": "circle"}, {"kind": "square", "sid": 1}]}, (
            "workload 'test': shapes[1] has no option 'sid'; did you mean 'side'? known: side, inner"
        )),
        ({"shape": {"kind": "square", "inner": {"radus": 1}}}, (
            "workload 'test': shape: inner has no option 'radus'; did you mean 'radius'? known: radius"
        )),
        ({"shapes": [1]}, "workload 'test': Expected `object`, got `int` - at `$.shapes[0]`"),
        ({"slo": 3}, "workload 'test': Expected `object | null`, got `int` - at `$.slo`"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line_of_the_owners_error(data: dict[str, Any], message: str) -> None:
    with pytest.raises(Mistake) as caught:
        read(data)
    assert str(caught.value) == message


def test_nearest_guesses_only_when_something_is_near() -> None:
    assert nearest("chatt", ["chat", "random"]) == "did you mean 'chat'? known: chat, random"
    assert nearest("", iter(["chat", "random"])) == "known: chat, random"

"""Parser of Prometheus' text format: contents of pages and speed."""

import math
import time

import pytest

from bakeoff.engines.metrics.prometheus import Sample, samples

PAGE = r"""
# HELP requests_total Requests, "all" of them.
# TYPE requests_total counter
requests_total{method="post",code="200"} 1027 1395066363000
requests_total{method="post",code="400",} 3
# A comment { with "braces }
  padded	{ a = "1" }	12.5
plain 7
negative -0.5
small 1.5e-09
nothing NaN
most +Inf
least -Inf
path{at="C:\\DIR\\",why="line one\nline two",said="\"{yes}\""} 1

# TYPE wait_seconds histogram
wait_seconds_bucket{le="0.1"} 8 # {trace_id="KOO5S4vxi0o"} 0.067 1520879607.789
wait_seconds_bucket{le="+Inf"} 9
wait_seconds_sum 3.5
wait_seconds_count 9
wait_seconds_created 1.7e+09
# EOF
"""


def read(page: str) -> dict[str, list[Sample]]:
    by_name: dict[str, list[Sample]] = {}
    for sample in samples(page):
        by_name.setdefault(sample.name, []).append(sample)
    return by_name


def test_numbers_come_with_their_names_and_labels():
    by_name = read(PAGE)
    assert by_name["requests_total"] == [
        Sample("requests_total", {"method": "post", "code": "200"}, 1027.0),
        Sample("requests_total", {"method": "post", "code": "400"}, 3.0),
    ]
    assert by_name["plain"] == [Sample("plain", {}, 7.0)]
    assert by_name["padded"] == [Sample("padded", {"a": "1"}, 12.5)]
    assert by_name["negative"][0].value == -0.5
    assert by_name["small"][0].value == 1.5e-9


def test_a_timestamp_or_an_exemplar_behind_the_value_is_not_the_value():
    by_name = read(PAGE)
    assert by_name["requests_total"][0].value == 1027
    assert by_name["wait_seconds_bucket"][0] == Sample("wait_seconds_bucket", {"le": "0.1"}, 8.0)


def test_labels_may_hold_quotes_braces_backslashes_and_ends_of_lines():
    assert read(PAGE)["path"][0].labels == {"at": "C:\\DIR\\", "why": "line one\nline two", "said": '"{yes}"'}


def test_values_that_are_no_number_or_have_no_end_are_told_as_such():
    by_name = read(PAGE)
    assert math.isnan(by_name["nothing"][0].value)
    assert (by_name["most"][0].value, by_name["least"][0].value) == (math.inf, -math.inf)


def test_comments_and_the_end_mark_are_no_samples():
    assert not any(name.startswith("#") for name in read(PAGE))


@pytest.mark.parametrize(
    "line",
    ["", "   ", "#", "name", "name{", 'name{a="1" 3', 'name{a="1', "name one", "{} 3", "<html>", '{"iter": 1}', "\x00"],
)
def test_a_line_that_is_no_sample_is_skipped_and_the_next_one_read(line: str):
    assert list(samples(f"{line}\nplain 7")) == [Sample("plain", {}, 7.0)]


def test_only_the_names_that_are_asked_for_are_given():
    assert {sample.name for sample in samples(PAGE, {"plain", "wait_seconds_sum"})} == {"plain", "wait_seconds_sum"}


def test_lines_may_end_as_on_windows_and_values_hold_what_python_calls_line_ends():
    page = 'a{b="one\x85two\u2028three"} 1\r\nplain 7\r\n'
    assert list(samples(page)) == [Sample("a", {"b": "one\x85two\u2028three"}, 1.0), Sample("plain", {}, 7.0)]


def test_an_unclosed_quote_in_a_long_line_costs_no_more_than_its_length():
    began_s = time.perf_counter()
    assert list(samples('a{b="' + '\\"x}{' * 20_000)) == []
    assert time.perf_counter() - began_s < 1.0

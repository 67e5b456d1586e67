"""Claims one after the other: order, budget, records, resumption, page and command."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from bakeoff import results
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.errors import EvaluationFailed
from bakeoff.harness.virtual import Death, Fault, Fixed, PerToken, VirtualEngine, VirtualWorld
from bakeoff.results.statistics.interval import Interval
from benchmarks.claims.interpreter.catalogue import Entry, load_catalogue
from benchmarks.claims.interpreter.claim import Case, Claim, Expected, Source
from benchmarks.claims.interpreter.errors import BadClaim
from benchmarks.claims.interpreter.lab import RealLab, result_of
from benchmarks.claims.interpreter.measurement import Measurement
from benchmarks.claims.interpreter.page import markdown, rows_of, write_page
from benchmarks.claims.interpreter.records import latest, read_records
from benchmarks.claims.interpreter.run import ClaimsRun, Here, run_all
from benchmarks.claims.interpreter.verdict import Estimate, Outcome, Verdict

PLACE = Here("a machine", {"cores": 2})
EXPECTED = Expected(at_least=2.0, ours="The source gives no figure.")


def entry(name: str, *cases: str) -> Entry:
    """A claim that a quantity is at least 2; the titles of its cases are those of :class:`Bench`."""
    made = [Case(title=title, absent="x", as_claimed=number == 0) for number, title in enumerate(cases)]
    claim = Claim("A & <b> is twice as fast.", "a ratio", "any", EXPECTED, [Source("Book", "book")], made)
    return Entry(name, claim, Path())


class Bench:
    """A lab of values, costs and missing things by title; time passes while it measures."""

    def __init__(self, values: Mapping[str, float], costs: Mapping[str, float], lacks: Mapping[str, str]) -> None:
        self.values, self.costs, self.lacks = values, costs, lacks
        self.done: list[str] = []
        self.now_s, self.retry = 0.0, False

    def missing(self, entry: Entry, case: Case) -> str | None:
        del entry
        return self.lacks.get(case.title)

    def cost_s(self, entry: Entry, cases: Sequence[Case]) -> float:
        del entry
        return sum(self.costs[case.title] for case in cases if case.title not in self.done)

    def measure(self, entry: Entry, case: Case) -> Measurement:
        self.now_s += self.cost_s(entry, [case])
        self.done.append(case.title)
        value = self.values[case.title]
        return Measurement(Estimate(Interval(value, value, value, 3)), runs=["run-1"], retry=self.retry)


def bench(**lacks: str) -> Bench:
    return Bench({"slow": 3, "quick": 1, "other": 5}, {"slow": 100, "quick": 10, "other": 50}, lacks)


def call(entries: list[Entry], lab: Bench, folder: Path, budget_s: float | None = None) -> ClaimsRun:
    return run_all(entries, lab, folder, PLACE, budget_s=budget_s, clock=lambda: lab.now_s)


def test_the_shortest_is_first_and_shared_measurements_follow_at_once(tmp_path: Path):
    lab = bench()
    entries = [entry("a", "slow"), entry("b", "quick", "other"), entry("c", "other"), entry("d", "slow")]
    lines: list[str] = []
    run_all(entries, lab, tmp_path, PLACE, clock=lambda: lab.now_s, progress=lines.append)
    assert lab.done == ["other", "quick", "other", "slow", "slow"]
    assert lines == ["c: reproduced", "b: holds under other conditions", "a: reproduced", "d: reproduced"]
    assert lab.now_s == 50 + 10 + 100


def test_time_that_is_up_leaves_claims_for_the_next_call(tmp_path: Path):
    entries, lab = [entry("a", "slow"), entry("b", "quick"), entry("c", "other")], bench()
    first = call(entries, lab, tmp_path, budget_s=65)
    assert ([record.claim for record in first.records], first.untested) == (["b", "c"], ["a"])
    again = bench()
    second = call(entries, again, tmp_path, budget_s=101)
    assert (again.done, second.untested) == (["slow"], [])
    assert [record.verdict for record in second.records] == [
        Verdict.REPRODUCED,
        Verdict.NOT_REPRODUCED,
        Verdict.REPRODUCED,
    ]


def test_a_claim_is_tested_again_when_it_or_what_is_missing_has_changed(tmp_path: Path):
    made = entry("a", "slow")
    call([made], bench(slow="a GPU"), tmp_path)
    call([made], lab := bench(), tmp_path)
    assert lab.done == ["slow"]
    call([made], same := bench(), tmp_path)
    assert same.done == []
    stricter = msgspec.structs.replace(made.claim, expected=Expected(at_least=4.0))
    call([msgspec.structs.replace(made, claim=stricter)], changed := bench(), tmp_path)
    assert changed.done == ["slow"]
    run_all([made], elsewhere := bench(), tmp_path, Here("another", {"cores": 4}))
    assert elsewhere.done == ["slow"]
    records = read_records(tmp_path, "a")
    assert [record.verdict for record in records] == [
        Verdict.NOT_TESTABLE,
        Verdict.REPRODUCED,
        Verdict.NOT_REPRODUCED,
        Verdict.REPRODUCED,
    ]
    assert {machine: record.verdict for machine, record in latest(records).items()} == {
        "a machine": Verdict.NOT_REPRODUCED,
        "another": Verdict.REPRODUCED,
    }


def test_a_claim_with_invalid_trials_is_tested_again(tmp_path: Path):
    lab = bench()
    lab.retry = True
    assert not call([entry("a", "slow")], lab, tmp_path).records[0].complete
    assert call([entry("a", "slow")], again := bench(), tmp_path).records[0].complete
    assert again.done == ["slow"]


def test_an_evaluation_that_fails_leaves_the_other_claims(tmp_path: Path):
    class Failing(Bench):
        def measure(self, entry: Entry, case: Case) -> Measurement:
            if case.title == "quick":
                raise EvaluationFailed("no memory")
            return super().measure(entry, case)

    lab = Failing({"slow": 3}, {"slow": 100, "quick": 10}, {})
    quick, slow = call([entry("a", "quick"), entry("b", "slow")], lab, tmp_path).records
    assert (quick.verdict, quick.complete, quick.cases[0].why_absent) == (Verdict.CANNOT_TELL, False, "no memory")
    assert (slow.verdict, slow.complete) == (Verdict.REPRODUCED, True)


def test_a_damaged_record_is_refused_and_kept(tmp_path: Path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(BadClaim, match=r"a\.json cannot be read"):
        call([entry("a", "slow")], bench(), tmp_path)
    assert (tmp_path / "a.json").read_text() == "{"


def test_page_and_markdown_have_every_claim_and_escape_it(tmp_path: Path):
    entries = [
        entry("a", "slow"),
        entry("b", "quick", "other"),
        entry("c", "slow"),
        entry("d", "quick"),
        entry("e", "other"),
    ]
    call(entries[:4], bench(), tmp_path)
    call([entries[2]], bench(slow="a GPU"), tmp_path)
    rows = rows_of(entries, tmp_path)
    write_page(rows, tmp_path / "claims.html")
    page, text = (tmp_path / "claims.html").read_text(), markdown(rows)
    kinds = ("reproduced", "not reproduced", "holds under other conditions", "not testable here", "not tested yet")
    for kind in kinds:
        assert kind in page
        assert f"| {kind} |" in text
    assert "; ".join(f"{kind}: 1" for kind in kinds) in text
    assert "below the range" in page
    assert "<dt>our reading</dt><dd>The source gives no figure.</dd>" in page
    assert "| ≥ 2, our reading |" in text
    assert "A &amp; &lt;b&gt; is twice as fast." in page
    assert "missing for “slow”: a GPU" in page
    assert "http://" not in page
    assert "https://" not in page


def test_results_of_a_claim_that_has_changed_are_not_shown(tmp_path: Path):
    made = entry("a", "slow")
    call([made], bench(), tmp_path)
    changed = msgspec.structs.replace(made.claim, expected=Expected(at_least=4.0))
    (row,) = rows_of([msgspec.structs.replace(made, claim=changed)], tmp_path)
    assert (rows_of([made], tmp_path)[0].record is None, row.record) == (False, None)
    call([msgspec.structs.replace(made, claim=changed)], bench(), tmp_path)
    assert rows_of([made], tmp_path)[0].record is not None


RUN = """
name = "virtual"
repeats = 3
engines = [
  { adapter = "reference", label = "slow" },
  { adapter = "reference", label = "fast", spec = { max_num_seqs = 4 } },
]
loads = [{ concurrency = 2 }]
workload = { name = "random", options = { input_tokens = 8, output_tokens = 5 } }
trial = { warm_up_s = 0.0, duration_s = 5, ramp_s = 1 }
client = { calibrate = false }
quality = { samples = 0 }
"""
CLAIM = """
sentence = "Fast is twice as fast."
quantity = "a ratio"
conditions = "any"
expected = { at_least = 1.9, at_most = 2.1 }
source = [{ title = "Book", kind = "book" }]

[[cases]]
title = "virtual"

[cases.experiment]
metric = "itl_p50_s"
of = { run = "v", engine = "slow", load = "c=2" }
over = { run = "v", engine = "fast", load = "c=2" }
"""


PACE = {"slow": PerToken(Fixed(0.05), Fixed(0.02)), "fast": PerToken(Fixed(0.05), Fixed(0.01))}


def virtual_claim(folder: Path) -> tuple[Entry, Case]:
    (folder / "experiments").mkdir()
    (folder / "experiments" / "v.toml").write_text(RUN)
    (folder / "mine.toml").write_text(CLAIM)
    (made,) = load_catalogue([folder], ["mine"])
    return made, made.claim.cases[0]


def test_an_experiment_is_measured_once_for_all_claims_and_calls(tmp_path: Path):
    made, case = virtual_claim(tmp_path)
    out = tmp_path / "claims"
    with inside(VirtualWorld({label: VirtualEngine(service=service) for label, service in PACE.items()})):
        lab = RealLab(out)
        assert lab.missing(made, case) is None
        assert lab.cost_s(made, [case]) > 6 * 5
        result = result_of(made, case, lab)
        assert (result.outcome, lab.cost_s(made, [case])) == (Outcome.INSIDE, 0.0)
        again = result_of(made, case, RealLab(out))
    assert again == result
    assert [folder.name for folder in (out / "runs").iterdir()] == result.runs
    assert sorted(result.values["v: slow at c=2"]) == [1, 2, 3]


def test_runs_of_another_machine_are_not_taken_for_runs_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, case = virtual_claim(tmp_path)
    provenance = SimpleNamespace(environment={"cpu": "another", "cores": 64, "gpus": []})
    elsewhere = SimpleNamespace(provenance=lambda: provenance)
    with inside(VirtualWorld({label: VirtualEngine(service=service) for label, service in PACE.items()})):
        result_of(made, case, RealLab(tmp_path / "claims"))
        assert RealLab(tmp_path / "claims").cost_s(made, [case]) == 0
        monkeypatch.setattr("benchmarks.claims.interpreter.lab.current_world", lambda: elsewhere)
        assert RealLab(tmp_path / "claims").cost_s(made, [case]) > 0


def test_a_run_that_two_cases_read_is_budgeted_once(tmp_path: Path):
    made, case = virtual_claim(tmp_path)
    with inside(VirtualWorld({})):
        lab = RealLab(tmp_path / "claims")
        assert lab.cost_s(made, [case, msgspec.structs.replace(case, title="again")]) == lab.cost_s(made, [case])


def test_invalid_trials_are_measured_again_with_their_partners(tmp_path: Path):
    made, case = virtual_claim(tmp_path)
    engines = {"slow": VirtualEngine(service=PACE["slow"]), "fast": VirtualEngine(faults={Fault.REFUSED: 0.5})}
    with inside(VirtualWorld(engines)):
        first = result_of(made, case, RealLab(tmp_path / "claims"))
        engines["fast"] = VirtualEngine(service=PACE["fast"])
        whole, rest = (RealLab(tmp_path / name).cost_s(made, [case]) for name in ("no-claims", "claims"))
        assert rest == whole, "a comparison pairs trials of one session"
        second = result_of(made, case, RealLab(tmp_path / "claims"))
    assert (first.outcome, first.retry) == (Outcome.UNCLEAR, True)
    assert (first.why_absent or "").startswith("no VALID trial of v: fast at c=2 has the metric; ")
    assert "requests failed" in (first.why_absent or "")
    assert (second.outcome, second.retry) == (Outcome.INSIDE, False)
    records = results.load(tmp_path / "claims" / "runs" / second.runs[0]).log.finished.values()
    assert {record.engine: record.reused_from is not None for record in records} == {"slow": False, "fast": False}


def test_an_engine_that_does_not_start_is_the_reason_for_a_missing_figure(tmp_path: Path):
    made, case = virtual_claim(tmp_path)
    engines = {"slow": VirtualEngine(service=PACE["slow"]), "fast": VirtualEngine(deaths=(Death(after_requests=0),))}
    with inside(VirtualWorld(engines)):
        result = result_of(made, case, RealLab(tmp_path / "claims"))
    why = (
        "v: fast at c=2 has the metric; fast, repeat 1: it did not start (exit status 1): the virtual engine wants this"
    )
    assert result.why_absent == f"no VALID trial of {why}"


def bakeoff(*arguments: object) -> int:
    return guarded(make_app(), ["lab", "claims", *map(str, arguments)])


def test_the_command_tests_reports_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "claims"
    assert bakeoff("run", "--out", out) == 3
    assert "give either --here for all claims, or --only" in capsys.readouterr().err
    assert bakeoff("run", "--only", "nothing", "--out", out) == 3
    assert bakeoff("run", "--here", "--budget-min", 0, "--out", out) == 3
    capsys.readouterr()
    assert bakeoff("run", "--only", "kv-per-token-70b", "mqa-kv", "--out", out, "--json") == 0
    written = json.loads(capsys.readouterr().out)
    assert [record["verdict"] for record in written["records"]] == ["reproduced", "reproduced"]
    assert bakeoff("report", "--out", out) == 2
    assert (out / "claims.md").read_text().count("\n| kv-per-token-70b | reproduced |") == 1
    assert bakeoff("list", "--json") == 0
    assert "mqa-kv" in json.loads(capsys.readouterr().out.split("\n", 1)[1])

"""What commands print with ``--json`` is what docs/json-schemas.json says, and every such command has its schema."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bakeoff.harness.cli import commands_of, make_app
from bakeoff.harness.cli.guarded import guarded
from docs.json_schemas import PRINTED, text
from tests.fresh import ROOT
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run
from tests.workloads.small_tokenizers import checkpoint

SHEET = Sheet(engines={"a": FAST, "b": SLOW}, loads=LOADS[:1], requests=6, invalid=(), regret=None, run_id="run")
SCHEMAS = json.loads((ROOT / "docs/json-schemas.json").read_text(encoding="utf-8"))
CALLS = {
    "compare": "compare runs/run@a runs/run@b",
    "doctor": "doctor",
    "doctor --environment": "doctor --environment",
    "engines list": "engines list",
    "export": "export runs/run --as csv --out tables",
    "gate": "gate --baseline runs/run@a --candidate runs/run@b",
    "history": "history runs --name demo",
    "models list": "models list",
    "plan": "plan smollm2-135m --gpu h200",
    "report": "report runs/run",
    "workloads fit": "workloads fit trace.csv --option max_rows=60",
    "workloads list": "workloads list",
    "workloads rules": "workloads rules",
    "workloads show": "workloads show random --sessions 5 --tokenizer tokenizer",
}


def problems(command: str, value: Any) -> list[str]:
    schema = {"$defs": SCHEMAS["$defs"], **SCHEMAS["commands"][command]}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]


def test_the_file_is_up_to_date():
    assert (ROOT / "docs/json-schemas.json").read_text(encoding="utf-8") == text(), "run make docs"


def test_every_command_with_json_has_a_schema():
    with_json = {
        name
        for name, command in commands_of(make_app())
        if command.default_command and "json" in inspect.signature(command.default_command).parameters
    }
    assert with_json == PRINTED.keys()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_what_is_printed_is_what_the_schema_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for day in range(20, 26) if name == "history" else (20,):
        sheet = dataclasses.replace(SHEET, run_id=f"run{day - 20 or ''}", created_utc=f"2026-11-{day}T10:15:00+00:00")
        build_run(tmp_path / "runs", sheet)
    checkpoint(tmp_path / "tokenizer")
    rows = "".join(f"{number / 2},{100 + number},10\n" for number in range(60))
    (tmp_path / "trace.csv").write_text(f"at_s,input_tokens,output_tokens\n{rows}")
    guarded(make_app(), [*CALLS[name].split(), "--json"])
    printed = json.loads(capsys.readouterr().out)
    command = name.partition(" --")[0]
    assert problems(command, printed) == []
    assert problems(command, {"nothing": "of this"}) != [] or command == "workloads list"

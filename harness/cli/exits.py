"""Exit codes: one table for the commands, their ``--help`` and the documentation."""

from collections.abc import Mapping, Sequence

EXIT_OK, EXIT_USER, EXIT_INVALID, EXIT_INTERRUPTED = 0, 2, 3, 130
EXIT_REGRESSION, EXIT_CANNOT_TELL, EXIT_DISTURBED, EXIT_NOT_MET = 1, 2, 1, 1
"""Codes of verdicts, in commands whose table below has them."""

_FAILED = "output that cannot be written, or a failure of Bakeoff itself"
_MISTAKE = "a mistake in the command or in a file that it names"
_SIGNALS = {EXIT_INTERRUPTED: "Ctrl-C, or SIGTERM while a run is measured", 143: "SIGTERM"}
_ORDINARY = {EXIT_OK: "done", EXIT_USER: _MISTAKE, EXIT_INVALID: f"no evidence, {_FAILED}"}
_MEASURING = {
    EXIT_OK: "every level of every engine has a valid trial",
    EXIT_USER: _MISTAKE,
    EXIT_INVALID: f"a level has none, an engine or the load generator failed, {_FAILED}",
}
OWN_CODES: Mapping[str, Mapping[int, str]] = {
    "demo": _MEASURING,
    "run": _MEASURING,
    "bench": {
        EXIT_OK: f"{_MEASURING[EXIT_OK]}, and meets --slo",
        EXIT_NOT_MET: "with --slo: a level does not meet it",
        EXIT_USER: f"{_MISTAKE}; with --slo: whether a level meets it is open",
        EXIT_INVALID: f"{_MEASURING[EXIT_INVALID]}; with --slo: {_MISTAKE}",
    },
    "profile": _MEASURING,
    "search": {
        EXIT_OK: "every engine is known to meet the objectives at some level",
        EXIT_USER: _MISTAKE,
        EXIT_INVALID: f"of one engine this is not known (at no level, below the range, nothing judged), {_FAILED}",
    },
    "gate": {
        EXIT_OK: "no regression",
        EXIT_REGRESSION: "regression",
        EXIT_CANNOT_TELL: "cannot tell",
        EXIT_INVALID: f"no evidence, {_MISTAKE}, {_FAILED}",
    },
    "history": {
        EXIT_OK: "no series that includes the newest run ends with a step for the worse",
        EXIT_REGRESSION: "one does",
        EXIT_CANNOT_TELL: "one is inconclusive (fewer than six runs; a newest value missing, 0 or far on the bad side)",
        EXIT_INVALID: f"no complete run, {_MISTAKE}, {_FAILED}",
    },
    "lab claims": {
        EXIT_OK: "every claim has a result, whatever it is",
        EXIT_CANNOT_TELL: "some have none: time was up, or trials were INVALID",
        EXIT_INVALID: f"{_MISTAKE}, {_FAILED}",
    },
    "doctor": {**_ORDINARY, EXIT_OK: "nothing disturbs measurements", EXIT_DISTURBED: "something does"},
}
"""Meanings by command or group whose codes are not those of the others."""


def exit_codes(command: str) -> Mapping[int, str]:
    """Meaning of each exit code of a command such as ``lab claims run``."""
    own = next((codes for name, codes in OWN_CODES.items() if f"{command} ".startswith(f"{name} ")), _ORDINARY)
    return dict(sorted({**own, **_SIGNALS}.items()))


def mistake_code(command: str, arguments: Sequence[str] = ()) -> int:
    """Exit code for a mistake of the user: a pipeline that tolerates a verdict must not tolerate a typing error."""
    if command == "bench":
        return EXIT_INVALID if any(word.startswith("--slo") for word in arguments) else EXIT_USER
    return EXIT_USER if exit_codes(command).get(EXIT_USER) == _MISTAKE else EXIT_INVALID

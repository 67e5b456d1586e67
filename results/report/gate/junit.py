"""A gate's verdict as JUnit XML, which CI servers show as tests: one test case per metric and load."""

from xml.etree import ElementTree as ET  # written only, nothing is parsed

from bakeoff.results.compare.gate import GateVerdict, NoVerdict, Outcome, Regression, RegressionKind
from bakeoff.results.compare.text import at_class, heading, why_text
from bakeoff.results.metrics import COMPARED
from bakeoff.results.report.comparisons.metrics import title
from bakeoff.results.report.gate.regressions import regression_text
from bakeoff.results.statistics import Judgement
from bakeoff.results.text.format import effect_text, plain


def junit_xml(verdict: GateVerdict | NoVerdict) -> bytes:
    """Write one test suite. A metric that is worse is a failure; an undecided primary metric is an error.

    A regression or doubt other than a metric (trials, work, answers) is a test case of its own, named after its kind.
    Notes are the output of the suite.
    """
    suite = ET.Element("testsuite", name="bakeoff gate")
    if isinstance(verdict, GateVerdict):
        _add_cases(suite, verdict)
    if verdict.outcome is Outcome.NO_EVIDENCE:
        case = _case(suite, "gate", "evidence")
        ET.SubElement(case, "error", message=plain(verdict.sentence), type=verdict.outcome.value)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    if isinstance(verdict, GateVerdict) and verdict.notes:
        ET.SubElement(suite, "system-out").text = "\n".join(map(plain, verdict.notes))
    suites = ET.Element("testsuites")
    suites.append(suite)
    return ET.tostring(suites, encoding="utf-8", xml_declaration=True)


def _add_cases(suite: ET.Element, verdict: GateVerdict) -> None:
    compared = verdict.compared
    for comparison in compared.comparisons:
        case = _case(suite, heading(comparison), title(comparison))
        text = f"{effect_text(comparison)} {plain(why_text(compared, comparison))}"
        is_primary = comparison is compared.primary and verdict.outcome is Outcome.CANNOT_TELL
        is_undecided = is_primary and not comparison.no_worse(COMPARED[comparison.metric])
        counts = comparison is compared.primary or comparison.is_guardrail
        if comparison.judgement is Judgement.WORSE and counts:
            ET.SubElement(case, "failure", message=text, type="regression")
        elif is_undecided:
            ET.SubElement(case, "error", message=text, type="cannot tell")
        else:
            ET.SubElement(case, "system-out").text = f"{comparison.judgement.value}: {text}"
    for regression in verdict.regressions:
        if regression.kind is not RegressionKind.METRIC:
            case = _case_of(suite, regression)
            ET.SubElement(case, "failure", message=plain(regression_text(verdict, regression)), type="regression")
    for doubt in verdict.doubts:
        case = _case_of(suite, doubt)
        ET.SubElement(case, "error", message=plain(regression_text(verdict, doubt)), type="cannot tell")


def _case(suite: ET.Element, level: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"bakeoff.{plain(level)}", name=name)


def _case_of(suite: ET.Element, regression: Regression) -> ET.Element:
    name = f"gate: {regression.metric or regression.kind.value}"
    at = "starts" if regression.level is None else at_class(regression.level, regression.traffic_class)
    return _case(suite, at, name)

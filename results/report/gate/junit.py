"""The verdict as JUnit XML, which every CI server shows as tests: one case for each metric at each load."""

from xml.etree import ElementTree as ET  # written only, nothing is parsed

from results.gate import GateVerdict, Outcome
from results.report.compare_table import title
from results.report.format import plain, ratio_text
from results.statistics import Comparison, Judgement


def junit_xml(verdict: GateVerdict) -> bytes:
    """One test suite. A metric that is worse is a failure; a primary one that cannot be told is an error.

    What failed and is no metric (answers, failed requests) is a case of its own.
    """
    compared = verdict.compared
    suite = ET.Element("testsuite", name="bakeoff gate")
    for one in compared.comparisons:
        case = _case(suite, one.level, title(one))
        text = f"{ratio_text(one.ratio)} {plain(one.why)}"
        is_undecided = one is compared.primary and verdict.outcome is Outcome.CANNOT_TELL
        if one.judgement is Judgement.WORSE:
            ET.SubElement(case, "failure", message=text, type="regression")
        elif is_undecided:
            ET.SubElement(case, "error", message=text, type="cannot tell")
        else:
            ET.SubElement(case, "system-out").text = f"{one.judgement.value}: {text}"
    for line in _beside(verdict):
        case = _case(suite, "beside the metrics", plain(line).partition(":")[0])
        ET.SubElement(case, "failure", message=plain(line), type="regression")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suites = ET.Element("testsuites")
    suites.append(suite)
    return ET.tostring(suites, encoding="utf-8", xml_declaration=True)


def _case(suite: ET.Element, level: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"bakeoff.{plain(level)}", name=name)


def _beside(verdict: GateVerdict) -> list[str]:
    worse: list[Comparison] = [one for one in verdict.compared.guardrails if one.judgement is Judgement.WORSE]
    return verdict.regressions[len(worse) :]

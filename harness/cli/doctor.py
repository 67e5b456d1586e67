"""The command that checks the machine before a measurement: doctor."""

from bakeoff.harness.cli.options import EXIT_OK, Json, standard_output


def doctor(*, json: Json = False) -> int:
    """Check what disturbs measurements on this machine, and how to fix it.

    Nothing is changed. To check whether engines can run here, use bakeoff engines doctor.

    Parameters
    ----------
    json
        Print the result as JSON on stdout.
    """
    import msgspec
    from rich.text import Text

    from bakeoff.harness.cli.reading import print_json
    from bakeoff.harness.host.doctor import State, examine_machine
    from bakeoff.results.text.format import plain

    checks = examine_machine()
    if json:
        print_json(msgspec.to_builtins(checks))
        return EXIT_OK
    styles = {State.FINE: "green", State.DISTURBS: "yellow", State.UNKNOWN: "dim"}
    console = standard_output()
    for check in checks:
        description = "; ".join(part for part in (check.seen, check.effect) if part)
        remedy = f" → {check.remedy}" if check.remedy else ""
        line = Text.assemble(
            (f"{check.state.value:<9}", styles[check.state]), plain(f" {check.subject}: {description}{remedy}")
        )
        console.print(line, soft_wrap=True)
    return EXIT_OK

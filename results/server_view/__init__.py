"""The engine's own view of the load, from its metrics page sampled during a trial, next to the client's view.

>>> from bakeoff.results.server_view import server_view, ENGINE_FIGURES
"""

from bakeoff.results.server_view.catalogue import ENGINE_FIGURES, POSITIONED, EngineFigure
from bakeoff.results.server_view.checks import Fall, fall, tokens_disagree
from bakeoff.results.server_view.pages import SOURCE, Page, engine_page, pages
from bakeoff.results.server_view.readings import Readings, readings
from bakeoff.results.server_view.split import PARTS, Part
from bakeoff.results.server_view.view import ServerCell, prefix_hit_share, server_cell, server_view

__all__ = [
    "ENGINE_FIGURES",
    "PARTS",
    "POSITIONED",
    "SOURCE",
    "EngineFigure",
    "Fall",
    "Page",
    "Part",
    "Readings",
    "ServerCell",
    "engine_page",
    "fall",
    "pages",
    "prefix_hit_share",
    "readings",
    "server_cell",
    "server_view",
    "tokens_disagree",
]

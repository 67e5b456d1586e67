"""Reports: runs, comparisons, gates, histories, searches and calibrations as tables, and a run as one offline page.

Lazy, because modules below the reports take :mod:`bakeoff.results.text.format`: loading every report for that would
load modules that import them in turn.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

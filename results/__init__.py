"""Results: the run folder, the metrics, the statistics and the reports.

Imports nothing of the other packages. The public API is :func:`load`, which gives a run as pandas frames.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""The measuring client: sends requests at their deadlines, stamps each read, and decodes the reads after the load.

``fleet`` starts workers and gives each its share; a ``worker`` is a process that drives one ``transport``; ``decode``
reads what they recorded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""The measuring client: fires requests at their deadlines, stamps what comes back, decodes it afterwards.

``fleet`` starts workers and gives each its share; a ``worker`` is a process that drives one ``transport``; ``decode``
reads what they recorded, when the load is over.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

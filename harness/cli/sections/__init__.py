"""Sections of ``bakeoff report``. A module declares its own as ``SECTION``, by which it is found."""

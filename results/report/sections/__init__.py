"""The sections of the report: each module declares its own in ``SECTIONS``."""

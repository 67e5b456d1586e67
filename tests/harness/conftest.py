"""Tests run side by side, so no real run may be judged by how busy the machine is."""

from tests.quiet import ignore_load

ignore_load()

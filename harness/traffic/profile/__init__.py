"""Workload profiles: the traffic of a workload, as a table in the terminal, one offline page, or JSON."""

from bakeoff.harness.traffic.profile.page import render_page, write_page
from bakeoff.harness.traffic.profile.selection import ShownProfile
from bakeoff.harness.traffic.profile.terminal import print_profile

__all__ = ["ShownProfile", "print_profile", "render_page", "write_page"]

"""The group ``bakeoff lab``."""

from bakeoff.harness.cli.command import Command, Title

COMMANDS = [Command("lab", None, Title.LAB, 20, "Measure this machine, the client itself, and well-known claims.")]

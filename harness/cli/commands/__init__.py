"""The commands. A module declares those that it holds in ``COMMANDS``, by which they are found."""

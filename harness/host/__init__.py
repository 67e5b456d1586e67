"""This machine and its processes: clocks, child processes, priorities, signals, environment."""

"""Rules of play: where sessions begin, what is sent before the measurement, which pauses are shortened, when it ends.

A set of rules is a TOML file with a name and a version. Results of different sets are not comparable.
"""

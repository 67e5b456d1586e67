"""Experiments: the experiment file, the features it needs from engines, and the fingerprint of a trial."""

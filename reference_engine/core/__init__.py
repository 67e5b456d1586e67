"""Requests, outputs and settings: the words that all other rooms share, none of which needs torch."""

"""Requests, outputs and settings, which all other folders share."""

"""Portraits of workloads: what would be sent, as a terminal screen, as one offline page, or as data."""

from harness.portraits.data import as_data
from harness.portraits.page import render_page, write_page
from harness.portraits.subject import Subject
from harness.portraits.terminal import print_portrait

__all__ = ["Subject", "as_data", "print_portrait", "render_page", "write_page"]

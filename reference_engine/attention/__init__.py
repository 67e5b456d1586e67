"""One attention interface over the paged cache, its torch backend and its naive twin."""

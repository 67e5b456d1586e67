"""Tables as values, and what draws them: a table is built once, for the page and the terminal alike."""

"""Charts as inline SVG, rendered on the server: complete without scripts, styled by the page's classes only."""

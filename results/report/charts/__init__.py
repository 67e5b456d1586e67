"""Charts as inline SVG, made on the server: complete without scripts, styled by the page's classes only."""

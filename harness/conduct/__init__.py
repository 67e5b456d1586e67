"""How a run is carried out: one conductor, the policies that choose trials, and the world they run in."""

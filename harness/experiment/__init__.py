"""What is to be measured: the experiment file, what it demands of engines, and what identifies a trial."""

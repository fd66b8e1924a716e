"""The door to Slurm: its commands, and what they print, of every supported version."""

"""A real Slurm cluster on this machine, for tests, exercises and rehearsals."""

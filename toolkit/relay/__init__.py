"""Connections to a server on a node of a job, over the one pipe that `srun` offers."""

"""Slurm's commands and the parsing of their output."""

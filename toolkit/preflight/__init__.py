"""Refuse jobs that could not run, before they queue."""

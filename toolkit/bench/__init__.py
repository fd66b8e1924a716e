"""Measure all-reduce and trainings on the user's cluster, by jobs of `toolkit run`."""

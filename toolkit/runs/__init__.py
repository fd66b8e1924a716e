"""Submission, observation and outcome of runs."""

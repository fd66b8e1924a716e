"""Explanations of failed runs and of jobs that wait."""

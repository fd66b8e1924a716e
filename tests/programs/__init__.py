"""Trainings of public repositories, by a table: `make test-programs PROGRAMS=DIR`. DIR has their checkouts."""

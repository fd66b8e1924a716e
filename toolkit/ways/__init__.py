"""Ways to run: what is decided for jobs that go back into the queue, for sweeps, and for those at a terminal. Pure."""

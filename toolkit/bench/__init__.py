"""Benchmarks of the tool itself: always side by side with a named peer, in one run, so that the machine's noise hits both."""

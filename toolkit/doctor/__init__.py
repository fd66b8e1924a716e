"""The doctor: examine whether jobs can run here, before they queue."""

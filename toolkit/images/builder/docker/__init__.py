"""Builds by Docker and podman, and their way into a SIF."""

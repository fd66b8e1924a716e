"""Make recipes of Dockerfiles and definitions."""

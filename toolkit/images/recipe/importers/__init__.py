"""Convert Dockerfiles and definitions to recipes."""

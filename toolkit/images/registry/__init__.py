"""Registries: references, logins, and images that are pulled and pushed."""

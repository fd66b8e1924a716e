"""Build images: from a resolved recipe to a SIF that has passed its checks."""

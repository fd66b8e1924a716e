"""Images: recipes, builds, the store, registries, lock files and verification."""

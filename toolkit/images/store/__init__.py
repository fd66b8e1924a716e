"""The images on disk, and their manifests."""

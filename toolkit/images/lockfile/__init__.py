"""Lock files: make them from an image, and build from them."""

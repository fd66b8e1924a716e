"""What acts: the ways to build an image, and what they share."""

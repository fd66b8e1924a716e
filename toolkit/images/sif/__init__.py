"""Read and write SIF files and the squashfs file systems in them."""

"""Multi-node training on Slurm clusters in containers: images, launching, explaining."""

__version__ = "0.1.0"

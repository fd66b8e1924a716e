"""Builds by Apptainer: as one, and in layers whose steps run in namespaces of their own."""

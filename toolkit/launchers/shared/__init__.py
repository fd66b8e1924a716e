"""Code that launchers share; no module of this package is a launcher."""

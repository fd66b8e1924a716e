"""Code that runtimes share; no module of this package is a runtime."""

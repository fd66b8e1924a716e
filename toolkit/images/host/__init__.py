"""The machine as work on images uses it: private directories, locks, space, package sources."""

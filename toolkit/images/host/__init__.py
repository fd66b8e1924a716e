"""What work on images takes of this machine: private directories, locks, space, package sources."""

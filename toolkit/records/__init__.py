"""The files of runs: their directories, index, code, snapshots and secrets."""

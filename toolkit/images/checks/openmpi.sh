#!/bin/sh
# What Open MPI says of itself: its version, and what Slurm can start it by (srun --mpi=...).
set -eu
said=$(ompi_info --parsable)
version=$(printf '%s\n' "$said" | sed -n 's/^ompi:version:full://p')
spoken=
# From 5 on, Open MPI is built with PMIx alone, and lists it nowhere.
case "$version" in [5-9].* | [1-9][0-9].*) spoken=pmix ;; esac
case "$said" in *mca:pmix:ext* | *mca:pmix:pmix*) spoken=pmix ;; esac
case "$said" in *mca:pmix:s2:*) spoken="$spoken pmi2" ;; esac
for one in $spoken; do
    echo "toolkit-fact: mpi $one"
done
test -n "$spoken" || { echo "Open MPI $version speaks neither PMIx nor PMI-2: Slurm cannot start it"; exit 1; }
echo "Open MPI $version speaks ${spoken# }"

#!/bin/bash
# The first process of one node: node-init.sh DIRECTORY NAME ADDRESS AS_USER SHARED...
#   DIRECTORY  of the cluster
#   AS_USER    1: we are root of a user namespace only, and what runs here shall have no privileges
#   SHARED     directories below /tmp or /dev/shm that stay the same on all nodes
set -euo pipefail
directory=$1 name=$2 address=$3 as_user=$4
shift 4

hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc

# A /tmp and a /dev/shm of its own; the shared directories are held open, and put back.
kept=()
for shared in "$@"; do
    [ -d "$shared" ] || continue
    exec {handle}<"$shared"
    kept+=("$handle" "$shared")
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
set -- ${kept[@]+"${kept[@]}"}
while [ $# -gt 0 ]; do
    mkdir -p "$2"
    mount --no-canonicalize --rbind "/proc/self/fd/$1" "$2"
    handle=$1
    exec {handle}<&-
    shift 2
done

# The cable is put in from outside.
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add "$address/24" dev eth0
ip link set eth0 up

plain=(env)
[ "$as_user" = 0 ] || plain+=(setpriv --ambient-caps=-all --inh-caps=-all)
# Not exec: a first process must take in the orphans of its node, which slurmd does not and bash does.
cd /
{
    trap - INT QUIT # which programs in the background of a script ignore, as their jobs would
    exec "${plain[@]}" slurmd -D -N "$name" >"$directory/log/slurmd.$name.out" 2>&1
} &
slurmd=$!
# Sent when the cable is back in: slurmd registers at once, and not when the controller next looks for it.
trap 'kill -HUP "$slurmd" || :' HUP
while :; do
    sleep 1000 &
    wait $! || :
done

#!/bin/sh
# A program of nccl-tests is there and finds its libraries; libcuda belongs to the driver, which only a node with a GPU has.
set -eu
missing=$(ldd "$1" | grep 'not found' | grep -v libcuda.so || true)
test -z "$missing" || { echo "it does not find its libraries: $missing"; exit 1; }
echo "${1##*/} finds its libraries"

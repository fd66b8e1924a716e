#!/bin/sh
# NVIDIA's own measurement, from the image nccl-tests: one GPU per rank, every sum checked. Its options: all_reduce_perf --help
exec all_reduce_perf "$@"

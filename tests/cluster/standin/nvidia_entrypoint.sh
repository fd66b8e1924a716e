#!/bin/sh
echo "== stand-in for NVIDIA's entrypoint, which prints this =="
exec "$@"

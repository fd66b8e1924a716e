#!/bin/sh
echo "$(id -un) $(id -gn) $(pwd)"

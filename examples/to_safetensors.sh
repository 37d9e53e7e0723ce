#!/bin/sh
# Turns a PyTorch checkpoint that you do not trust into a safetensors file. Nothing in it is executed, and neither Python nor
# PyTorch is needed. CHECKPOINT is a file, FILE#KEY.PATH for a part of it, or a directory.
#
#   sh examples/to_safetensors.sh CHECKPOINT OUT.safetensors
set -eu
stfs=${STFS:-stfs}
"$stfs" verify "$1"
"$stfs" ls --why "$1"
mountpoint=$(mktemp -d)
trap 'rmdir "$mountpoint"' EXIT
"$stfs" mount "$1" "$mountpoint"
trap '"$stfs" umount "$mountpoint"; rmdir "$mountpoint"' EXIT
cp "$mountpoint/export/model.safetensors" "$2"

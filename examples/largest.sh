#!/bin/sh
# od and awk: the five largest values of a tensor, with their positions. Works on any Unix.
#
#   sh examples/largest.sh /tmp/tiny-llama/tensors/model.norm.weight/f32
set -eu
od -An -v -w4 -tfF "$1" | awk '{ print $1, NR - 1 }' | sort -g -r | head -5 |
    awk '{ printf "value %s at position %d\n", $1, $2 }'

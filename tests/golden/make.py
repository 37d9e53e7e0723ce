#!/usr/bin/env python3
"""Runs one maker of makers/ in the environment that this Python is of; `make.sh` makes them all."""

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module(f"makers.{sys.argv[1]}").make()

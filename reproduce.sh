#!/bin/sh
# Every notebook, figure and table on synthetic data, and the pages made of them.
set -e
cd "$(dirname "$0")"
make reproduce
make results

#!/bin/bash
set -e
export EPOCHS=2
python subclass.py "$@" | tee train.log

#!/bin/bash
# Prints where cargo puts the release build of the command.
set -eu
cd "$(dirname "$0")/.."
directory=$(cargo metadata --format-version 1 --no-deps --offline | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
echo "$directory/release/capriole"

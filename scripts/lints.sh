#!/bin/bash
# cargo calls this for each crate of the workspace, with the compiler as $1, if it is its
# RUSTC_WORKSPACE_WRAPPER, and for each crate's documentation as `rustdoc`, if it is its RUSTDOC: compiles
# and tests as without it, and denies what clippy and rustdoc find. Lints for themselves compile half of the
# workspace again. CLIPPY_DRIVER is the path of clippy's compiler, so that not each call asks for it.
set -eu
if [ "${1-}" = rustc ] || [ "${1##*/}" = rustc ]; then
	rustc=$1
	shift
	exec "${0%/*}/rustc.sh" "${CLIPPY_DRIVER:-$("$rustc" --print sysroot)/bin/clippy-driver}" "$rustc" "$@" -D warnings
fi

# The examples of a crate are about to be tested.
tests=() documents=()
skip=""
for argument; do
	tests+=("$argument")
	if [ -n "$skip" ]; then
		skip=""
		continue
	fi
	case $argument in
	--test) ;;
	--test-run-directory | --test-args) skip=1 ;;
	*) documents+=("$argument") ;;
	esac
done
case " $* " in
*" --test "*)
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
	rustdoc "${documents[@]}" -D warnings -o "$out"
	;;
esac
rustdoc "${tests[@]}"

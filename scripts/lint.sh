#!/bin/bash
# Formatting, lints and documentation. A tool that is not installed is left out, and
# said so.
set -u
cd "$(dirname "$0")/.." || exit 1
failed=0

lint() {
	local tool=$1
	shift
	if ! cargo "$tool" --version >/dev/null 2>&1; then
		echo "lint: cargo $tool is not installed, left out (get it with: rustup component add clippy rustfmt)" >&2
		return
	fi
	echo "lint: cargo $tool $*"
	cargo "$tool" "$@" </dev/null || failed=1
}

lint fmt --all --check
lint clippy --workspace --all-targets -- -D warnings
echo "lint: cargo doc"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps </dev/null || failed=1
exit "$failed"

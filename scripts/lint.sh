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

# Output of runs and large files do not belong to the project. Without git nobody adds any.
strays() {
	local file size found
	git rev-parse --is-inside-work-tree >/dev/null 2>&1 || return 0
	found=$(git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
		[ -f "$file" ] || continue
		size=$(stat -c %s "$file")
		if [ "$size" -gt 204800 ]; then
			echo "lint: $file has $size bytes; files of more than 200 KB stay out" >&2
			echo stray
		fi
		case $file in
		*.err | *.log | *.out | *.orig | *.rej | *.snap.new | *.profraw | perf.data* | core | core.*)
			echo "lint: $file is what a run has left; take it out" >&2
			echo stray
			;;
		*/*) ;;
		*.json | *.svg | *.txt | *.folded)
			echo "lint: $file is output in the project's first directory; take it out" >&2
			echo stray
			;;
		esac
	done)
	[ -z "$found" ] || failed=1
}

echo "lint: stray files"
strays
lint fmt --all --check
lint clippy --workspace --all-targets -- -D warnings
echo "lint: cargo doc"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps </dev/null || failed=1
exit "$failed"

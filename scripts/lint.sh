#!/bin/bash
# Formatting, lints and documentation; with `format` as $1 only what needs no compiler. A tool that is
# not installed is left out, and said so.
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
	git rev-parse --is-inside-work-tree >/dev/null 2>&1 || return 0
	# A file that was deleted but not committed has no size.
	git ls-files -z --cached --others --exclude-standard |
		xargs -0 stat --printf '%s\t%n\n' 2>/dev/null |
		awk -F '\t' '
			$1 > 204800 { say("has " $1 " bytes; files of more than 200 KB stay out") }
			$2 ~ /\.(err|log|out|orig|rej|snap\.new|profraw)$/ ||
			$2 ~ /^(perf\.data|core$|core\.)/ { say("is what a run has left; take it out") }
			$2 ~ /^[^\/]*\.(json|svg|txt|folded)$/ {
				say("is output in the top directory; take it out")
			}
			function say(what) { print "lint: " $2 " " what; found = 1 }
			END { exit found }
		' >&2 || failed=1
}

echo "lint: stray files"
strays
lint fmt --all --check
[ "${1-}" != format ] || exit "$failed"
lint clippy --workspace --all-targets -- -D warnings
# What cargo clippy has just found out about the crates serves for their documentation, too, if it
# seems to be asked for in the same way; if not, it is found out again.
driver=$(rustc --print sysroot)/bin/clippy-driver
if [ -x "$driver" ]; then
	export RUSTC_WORKSPACE_WRAPPER=$driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
fi
echo "lint: cargo doc"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps </dev/null || failed=1
exit "$failed"

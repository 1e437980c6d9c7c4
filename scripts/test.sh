#!/bin/bash
# Runs the tests, with cargo-nextest or, where it cannot be had, with `cargo test`. Arguments are for
# cargo-nextest: filters, `-p CRATE`, `-E EXPRESSION`.
#
# Tests that lack something (a compiler, root) say "skipped: REASON" and pass; the reasons are listed
# at the end, so that nobody takes them for tested. The closing lines of the runner come last.
set -u
cd "$(dirname "$0")/.." || exit 1
if [ "${CAPRIOLE_CLEAN-}" != 1 ]; then
	CAPRIOLE_CLEAN=1 exec scripts/clean.sh "$0" "$@"
fi
threads=$((2 * $(nproc))) # many tests wait for programs more than they compute
log=$(mktemp) || exit 1
trap 'rm -f "$log" "$log.examples"' EXIT
status=0

# Each reason and how many tests gave it.
left_out() {
	local reasons
	reasons=$(grep -o 'skipped: .*' "$1" | sed 's/^skipped: //; s/<.*//' | sort | uniq -c)
	[ -z "$reasons" ] || printf '\nLeft out (number of times, reason):\n%s\n' "$reasons"
}

if ! nextest=$(scripts/nextest.sh); then
	echo "test: going on without cargo-nextest: see above"
	cargo test --workspace --no-fail-fast "$@" -- --test-threads "$threads" --show-output >"$log" 2>&1
	status=$?
	# With `--show-output` all output comes before the names of what passed or failed.
	awk '
		/^successes:$/ { quiet = 1 }
		/^(failures:|test result:|     Running |   Doc-tests )/ { quiet = 0 }
		!quiet && !/^test .* \.\.\. (ok|ignored)/
	' "$log"
	left_out "$log"
	awk '
		/^test result:/ { for (i = 2; i <= NF; i++) {
			if ($i ~ /^passed/) passed += $(i - 1)
			if ($i ~ /^failed/) failed += $(i - 1)
			if ($i ~ /^ignored/) skipped += $(i - 1)
		} }
		END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
	' "$log"
	exit "$status"
fi

scope=(--workspace)
case " $* " in *" -p "* | *" --package "*) scope=() ;; esac
# The examples in the documentation are compiled one after the other: beside the other tests.
examples=""
if [ $# = 0 ]; then
	cargo test -q --workspace --doc --no-fail-fast >"$log.examples" 2>&1 &
	examples=$!
fi
times=${CARGO_TARGET_DIR:-target}/nextest/default/junit.xml
rm -f "$times" # what an earlier run wrote
"$nextest" nextest run "${scope[@]}" --test-threads "$threads" --no-tests=fail "$@" 2>&1 | tee "$log"
[ "${PIPESTATUS[0]}" = 0 ] || status=1
if [ -n "$examples" ]; then
	wait "$examples" || status=1
	echo
	echo "The examples in the documentation:"
	grep -v -e '^$' -e '^running [0-9]* test' -e ' 0 passed; 0 failed' -e '^all doctests ran' "$log.examples"
fi
[ -f "$times" ] || exit "$status" # the build failed
echo
echo "The ten slowest tests (seconds):"
scripts/times.sh "$times" 10 | sed -n '/^The slowest/,$p' | sed 1,4d
left_out "$times"
# The runner's last lines once more: what it counted, and what failed.
echo
sed -n '/^ *Summary \[/,$p' "$log" | grep -v '^ *SLOW'
exit "$status"

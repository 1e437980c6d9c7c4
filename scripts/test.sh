#!/bin/bash
# Runs all tests and adds up what the test runner says. Arguments go to `cargo test`.
#
# Tests that lack something (a compiler, root) say "skipped: REASON" and pass; the
# reasons are listed at the end, so that nobody takes them for tested.
set -u
cd "$(dirname "$0")/.." || exit 1
log=$(mktemp) || exit 1
results=$(mktemp) || exit 1
trap 'rm -f "$log" "$results"' EXIT

# Many tests wait for programs more than they compute, so there are more of them at once than
# processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}

# `--show-output` for the reasons; what passing tests print is not shown here. With it
# the runner says "successes:" twice, first with all output, then with names only, and
# "failures:" likewise. A result in between is that of a test that runs tests itself.
{
	cargo test --workspace --no-fail-fast "$@" -- --show-output </dev/null 2>&1
	status=$?
	# What times calls, once more, by a clock that advances 26 ticks at once, as that of some
	# processors does.
	if [ $# = 0 ]; then
		export CAPRIOLE_CLOCK_STEP=26
		cargo test -p capriole-cli --test it --no-fail-fast \
			-- kept:: calls:: landing:: thrown:: --show-output </dev/null 2>&1 || status=$?
	fi
	exit "$status"
} |
	tee "$log" |
	awk -v results="$results" '
		/^(successes|failures):$/ {
			inside = (inside == $1) ? "" : $1
			show = ($1 == "failures:")
		}
		/^test result:/ && inside == "" {
			print > results
			show = 1
		}
		/^     Running / || /^   Doc-tests / { inside = ""; show = 1 }
		BEGIN { show = 1 }
		show { print; fflush() }
	'
status=${PIPESTATUS[0]}

echo
echo "Summary"
cat "$results"
if grep -q '^skipped: ' "$log"; then
	echo "Left out (number of times, reason):"
	grep '^skipped: ' "$log" | sed 's/^skipped: //' | sort | uniq -c
fi
if [ "$status" != 0 ] && ! grep -q '^test result: FAILED' "$results"; then
	echo "cargo test ended with status $status: see above"
fi
# "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ..."
awk '
	{
		for (i = 2; i <= NF; i++) {
			if ($i ~ /^passed/) passed += $(i - 1)
			if ($i ~ /^failed/) failed += $(i - 1)
			if ($i ~ /^ignored/) skipped += $(i - 1)
		}
	}
	END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
' "$results"
exit "$status"

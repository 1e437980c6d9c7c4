#!/bin/bash
# Runs all tests and adds up what the test runner says. Arguments go to `cargo test`.
#
# Tests that lack something (a compiler, root) say "skipped: REASON" and pass; the
# reasons are listed at the end, so that nobody takes them for tested.
set -u
cd "$(dirname "$0")/.." || exit 1
log=$(mktemp) || exit 1
results=$(mktemp) || exit 1
others=$(mktemp) || exit 1
hammered=$(mktemp) || exit 1
trap 'rm -f "$log" "$results" "$others" "$hammered"' EXIT

# `--show-output` for the reasons; what passing tests print is not shown here.
run() { cargo test --no-fail-fast "$@" --show-output </dev/null 2>&1; }

# The tests of the command take longer than all others, and wait for programs more than they
# compute. So three parts run side by side, and more tests at once than there are processors. The
# output of the second and the third part follows when all have ended.
all() {
	local threads=${RUST_TEST_THREADS:-$((2 * $(nproc)))} status=0 part
	cargo test --workspace --no-run </dev/null || return
	# The test of the static command is left out where rust has no standard library for it.
	if [ -d "$(rustc --print sysroot)/lib/rustlib/x86_64-unknown-linux-musl/lib" ]; then
		scripts/static.sh debug </dev/null || return
	fi
	(
		export RUST_TEST_THREADS=$(((threads + 1) / 2))
		run --workspace --exclude capriole-cli --
		status=$?
		# What times calls, once more, by a clock that advances 26 ticks at once, as that of
		# some processors does.
		CAPRIOLE_CLOCK_STEP=26 run -p capriole-cli --test it \
			-- kept:: calls:: landing:: thrown:: || status=$?
		exit "$status"
	) >"$others" &
	local parts=$!
	# Each of these keeps all processors busy, so they take turns.
	RUST_TEST_THREADS=1 run -p capriole-cli --test it -- hammered:: >"$hammered" &
	parts="$parts $!"
	RUST_TEST_THREADS=$threads run -p capriole-cli -- --skip hammered:: || status=$?
	for part in $parts; do wait "$part" || status=$?; done
	cat "$others" "$hammered"
	return "$status"
}

# With `--show-output` the runner says "successes:" twice, first with all output, then with
# names only, and "failures:" likewise. A result in between is that of a test that runs tests
# itself.
if [ $# = 0 ]; then all 2>&1; else run --workspace "$@" --; fi |
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

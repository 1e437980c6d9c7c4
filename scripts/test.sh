#!/bin/bash
# Runs all tests and adds up what the test runner says. Arguments go to `cargo test`.
#
# Tests that lack something (a compiler, root) say "skipped: REASON" and pass; the
# reasons are listed at the end, so that nobody takes them for tested.
#
# A test that hangs must not hide the results of all others: a program that a test has started, and
# that still runs after 15 minutes, is named and killed, so that its test fails; and after
# CAPRIOLE_TEST_SECONDS (3000) everything is.
set -u
cd "$(dirname "$0")/.." || exit 1
log=$(mktemp) || exit 1
results=$(mktemp) || exit 1
others=$(mktemp) || exit 1
hammered=$(mktemp) || exit 1
trap 'rm -f "$log" "$results" "$others" "$hammered" "$sessions"' EXIT
deadline=$((SECONDS + ${CAPRIOLE_TEST_SECONDS:-3000}))

# The processes of a run are a session of their own. Ctrl-C does not reach it.
sessions=$(mktemp) || exit 1
end_all() { while read -r session; do pkill -KILL -s "$session"; done <"$sessions"; }
trap 'end_all; exit 130' INT TERM HUP

# Kills what hangs in the session of a test runner, whose own children are the tests' programs.
watch() {
	local runner=$1 pid parent age words
	while kill -0 "$runner" 2>/dev/null; do
		ps --no-headers -s "$runner" -o pid,ppid,etimes,stat,wchan:20,args |
			while read -r pid parent age words; do
				# The age of a process that has just begun may come out as a huge number.
				[ "$age" -le "$SECONDS" ] || age=0
				if [ "$SECONDS" -ge "$deadline" ] ||
					{ [ "$age" -gt 900 ] && [ "$pid" != "$runner" ] && [ "$parent" != "$runner" ]; }; then
					echo "tests: killed after $age s: process $pid $words"
					kill -KILL "$pid" 2>/dev/null
				fi
			done
		sleep 5
	done
}

# What runs in the background inherits an ignored SIGINT; tests that interrupt what they started
# need it as it is in a terminal.
limited() {
	setsid env --default-signal=INT,QUIT "$@" &
	local runner=$! status
	echo "$runner" >>"$sessions"
	watch "$runner" &
	wait "$runner"
	status=$?
	# What a test that failed has left behind.
	pkill -KILL -s "$runner"
	return "$status"
}

# `--show-output` for the reasons; what passing tests print is not shown here.
run() { limited cargo test --no-fail-fast "$@" --show-output </dev/null 2>&1; }

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

# To a file, because a process that a test leaves behind may hold the output open for ever.
if [ $# = 0 ]; then all; else run --workspace "$@" --; fi >"$log" 2>&1 &
running=$!

# With `--show-output` the runner says "successes:" twice, first with all output, then with
# names only, and "failures:" likewise. A result in between is that of a test that runs tests
# itself.
tail -n +1 -s 0.2 --pid="$running" -f "$log" |
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
wait "$running"
status=$?
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

#!/bin/bash
# Attaches to and leaves, again and again, a program whose threads check every result
# they compute. Some recorders end by themselves, some are killed (SIGKILL) at a random
# moment; what those leave is taken out with `capriole detach` or by the next recorder.
# The program has to end well and to be as it was.
#
#   STRESS_SECONDS=60 scripts/stress.sh
set -u
limit=${STRESS_SECONDS:-60}
cd "$(dirname "$0")/.." || exit 1
capriole=${CAPRIOLE:-$(scripts/binary.sh)}

work=$(mktemp -d) || exit 1
program=""
clean_up() {
	[ -z "$program" ] || kill "$program" 2>/dev/null
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
fail() {
	echo "stress: $*" >&2
	exit 1
}

cc -std=gnu99 -O2 -g -pthread -o "$work/hammer" tests/programs/hammer.c -ldl || exit 1
"$work/hammer" --seconds "$((limit + 60))" --threads 4 --signals --fork --segv \
	</dev/null >"$work/output" 2>&1 &
program=$!
until grep -q '^ready' "$work/output"; do
	kill -0 "$program" 2>/dev/null || fail "the program did not start: $(cat "$work/output")"
	sleep 0.1
done

recorded=0 killed=0 detached=0
SECONDS=0
while [ "$SECONDS" -lt "$limit" ]; do
	rm -rf "$work"/trace*
	"$capriole" record -p "$program" -e ':work* $arg1 $arg2' -e ':step $arg1' -o "$work/trace" \
		--duration "$((RANDOM % 300))ms" </dev/null 2>"$work/said" &
	recorder=$!
	if [ "$((RANDOM % 2))" = 0 ]; then
		sleep "0.$(printf '%03d' "$((RANDOM % 200))")"
		kill -KILL "$recorder" 2>/dev/null && killed=$((killed + 1))
		wait "$recorder" 2>/dev/null
		if [ "$((RANDOM % 2))" = 0 ]; then
			"$capriole" detach "$program" >"$work/said" 2>&1 && detached=$((detached + 1))
		fi
	else
		wait "$recorder" || fail "recording failed: $(cat "$work/said")"
		recorded=$((recorded + 1))
	fi
	kill -0 "$program" 2>/dev/null || fail "the program has ended: $(tail -n 3 "$work/output")"
done
"$capriole" detach "$program" >/dev/null 2>&1
! grep -q capriole "/proc/$program/maps" || fail "memory was left in the program"
kill -TERM "$program"
wait "$program"
status=$?
program=""
if [ "$status" != 0 ] || ! tail -n 1 "$work/output" | grep -q '^ok '; then
	fail "the program ended with status $status: $(tail -n 3 "$work/output")"
fi
echo "stress: $recorded recordings ended by themselves, $killed were killed, of which $detached were taken out by detach; the program: $(tail -n 1 "$work/output")"

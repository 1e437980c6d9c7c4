#!/bin/bash
# Records `libc:*` and `:*` again and again in programs whose state makes that delicate: in
# calls with time limits, behind filters of system calls, in vfork, with memory that another
# process shares, with handlers for signals and faults. Some recorders are killed. Each
# program checks its own answers, and how long its calls lasted: none may be shorter than
# asked. That none was more than 200 ms longer is measured beside a program of the same kind
# that nobody touches, since on a busy machine that happens to everybody.
#
#   STRESS_SECONDS=60 scripts/stress-unhurt.sh
#
# Needs root for the filtered ones, which are left out otherwise.
set -u
limit=${STRESS_SECONDS:-60}
cd "$(dirname "$0")/.." || exit 1
capriole=${CAPRIOLE:-$(scripts/binary.sh)}

work=$(mktemp -d) || exit 1
declare -A pid input
clean_up() {
	for name in "${!pid[@]}"; do kill -KILL "${pid[$name]}" 2>/dev/null; done
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
fail() {
	echo "stress: $*" >&2
	exit 1
}

for source in tests/programs/{timed,vforking,shared_memory,hammer}.c; do
	name=$(basename "$source" .c)
	cc -std=gnu99 -O2 -g -pthread -o "$work/$name" "$source" -ldl || exit 1
done

# NAME PROGRAM ARGUMENTS: starts it, with an input that ends when we close it.
start() {
	local name=$1 program=$2 fd
	shift 2
	mkfifo "$work/$name.in"
	: >"$work/$name.out"
	(
		# Whoever had the other inputs open would keep them from ending.
		for fd in "${input[@]}"; do exec {fd}>&-; done
		exec "$work/$program" "$@" <"$work/$name.in" >"$work/$name.out" 2>&1
	) &
	pid[$name]=$!
	exec {fd}>"$work/$name.in"
	input[$name]=$fd
	until grep -q '^ready' "$work/$name.out"; do
		kill -0 "${pid[$name]}" 2>/dev/null || fail "$name did not start: $(cat "$work/$name.out")"
		sleep 0.05
	done
}
start control timed
start sleeper timed
start vforking vforking 1
start shared shared_memory
start hammer hammer --seconds "$((limit + 120))" --threads 2 --signals --fork --segv
recorded_ones="sleeper vforking shared hammer"
if [ "$(id -u)" = 0 ]; then
	start filtered timed --filter
	recorded_ones="$recorded_ones filtered"
else
	echo "stress: skipped: filtered programs (only root may suspend a filter)"
fi

recorded=0 killed=0 busy=0
SECONDS=0
while [ "$SECONDS" -lt "$limit" ]; do
	for name in $recorded_ones; do
		rm -rf "$work/trace"
		event='libc:*'
		[ "$((RANDOM % 2))" = 0 ] || event=':*'
		"$capriole" record -p "${pid[$name]}" -e "$event" -o "$work/trace" --duration "$((RANDOM % 300))ms" \
			</dev/null 2>"$work/said" &
		recorder=$!
		if [ "$((RANDOM % 4))" = 0 ]; then
			sleep "0.$(printf '%03d' "$((RANDOM % 400))")"
			kill -KILL "$recorder" 2>/dev/null && killed=$((killed + 1))
			wait "$recorder" 2>/dev/null
			[ "$((RANDOM % 2))" = 0 ] || "$capriole" detach "${pid[$name]}" >/dev/null 2>&1
		elif wait "$recorder"; then
			recorded=$((recorded + 1))
		elif grep -q 'does not stop' "$work/said"; then
			busy=$((busy + 1))
		else
			fail "recording $event in $name failed: $(cat "$work/said")"
		fi
		kill -0 "${pid[$name]}" 2>/dev/null || fail "$name has ended: $(tail -n 3 "$work/$name.out")"
	done
done

latest() { sed -n 's/^latest by \([0-9]*\) us$/\1/p' "$work/$1.out"; }
said=""
for name in control $recorded_ones; do
	if grep -q capriole "/proc/${pid[$name]}/maps"; then
		"$capriole" detach "${pid[$name]}" >/dev/null 2>&1
		! grep -q capriole "/proc/${pid[$name]}/maps" || fail "memory was left in $name"
	fi
	[ "$name" != hammer ] || kill -TERM "${pid[$name]}"
	exec {input[$name]}>&-
	wait "${pid[$name]}"
	status=$?
	unset "pid[$name]"
	if [ "$status" != 0 ] || ! tail -n 1 "$work/$name.out" | grep -q '^ok'; then
		fail "$name ended with status $status: $(tail -n 3 "$work/$name.out")"
	fi
	said="$said; $name: $(tail -n 1 "$work/$name.out")"
done
for name in sleeper filtered; do
	[ -e "$work/$name.out" ] || continue
	over=$(($(latest "$name") - $(latest control)))
	said="$said; $name latest by $(latest "$name") us, $over more than the control"
	[ "$over" -lt 200000 ] || fail "calls of $name were up to $over us later than those of a program that nobody recorded"
done
echo "stress: $recorded recordings, $killed killed, $busy times a thread did not stop$said"

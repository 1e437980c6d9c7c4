#!/bin/bash
# Runs a command in the environment that tests expect, whoever starts it and from where: `nohup`, a
# shell with ignored signals, another locale, tight limits. Tests that need another one make it.
#
#   scripts/clean.sh COMMAND [ARGUMENT]...
#
# The command and all that it starts are a session of their own, with a directory for temporary files of
# its own; what is left of both is killed and removed when the command ends. Interrupting this script
# interrupts the command.
set -u

unset $(compgen -e | grep -E '^(LC_|LD_|GLIBC_|MALLOC_|MAKE|MFLAGS|RUST_(BACKTRACE|LOG)|NEXTEST|CLICOLOR|DEBUGINFOD_|TZ$|LANG|NO_COLOR$|FORCE_COLOR$|COLUMNS$|LINES$|PAGER$|MANPAGER$|MANWIDTH$|MANPATH$|GREP_|CDPATH$|BASH_ENV$|ENV$|POSIXLY_CORRECT$|PYTHON|CAPRIOLE_(DIE|STOP)_AT$)')
export LC_ALL=C.UTF-8 TERM=dumb
umask 022

# Limits as a login shell has them, where the hard ones leave room.
limit() {
	local hard
	hard=$(ulimit -H "$1")
	if [ "$hard" = unlimited ] || { [ "$2" != unlimited ] && [ "$2" -le "$hard" ]; }; then
		ulimit -S "$1" "$2"
	else
		ulimit -S "$1" "$hard"
	fi
}
limit -c 0
limit -n 4096
limit -s 8192
for unlimited in -d -f -m -t -u -v; do limit "$unlimited" unlimited; done
# Makes a directory for temporary files under $1, where programs can be run: many tests run some that
# they have built there.
scratch() {
	[ -d "$1" ] || return
	# Tests run in the directories of their crates.
	scratch=$(mktemp -d "$(realpath "$1")/capriole-XXXXXX") || return
	cp "$(type -P true)" "$scratch/true" && "$scratch/true" && rm "$scratch/true" && return
	rm -rf "$scratch"
	false
}
# What tests that are killed leave behind goes with it. Others than root may write there, as into /tmp.
for place in "${TMPDIR-/tmp}" /tmp /var/tmp /dev/shm ""; do
	scratch "$place" 2>/dev/null && break
done
if [ -z "$place" ]; then
	echo "$0: no directory for temporary files where programs can be run: set TMPDIR" >&2
	exit 1
fi
TMPDIR=$scratch
chmod 1777 "$TMPDIR"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

[ "$(nice)" = 0 ] || renice -n 0 -p $$ >/dev/null 2>&1

session="" interrupted=""
# To all of the session's first process group, as a terminal does it.
pass_on() {
	kill -s "$1" -- "-$session" 2>/dev/null || kill -s "$1" "$session" 2>/dev/null
}
for signal in INT TERM HUP; do
	trap 'interrupted='"$signal"'; [ -z "$session" ] || pass_on "$interrupted"' "$signal"
done
# A shell without job control starts what runs in the background with an ignored SIGINT.
setsid env --default-signal "$@" </dev/null &
session=$!
[ -z "$interrupted" ] || pass_on "$interrupted"
# `wait` returns when a signal comes; the command then still has to end.
while :; do
	wait "$session"
	status=$?
	kill -0 "$session" 2>/dev/null || break
done
# Killed processes end a moment later, and until then can write files.
for _ in {1..500}; do
	pkill -KILL -s "$session"
	ps -o stat= -s "$session" | grep -qv ^Z || break
	sleep 0.01
done
exit "$status"

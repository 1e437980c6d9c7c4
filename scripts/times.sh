#!/bin/bash
# Prints how long tests took, by module and by test, from the results that cargo-nextest keeps.
#
#   scripts/times.sh [JUNIT.xml [NUMBER]]     target/nextest/default/junit.xml, 40 tests
#
# Seconds of tests that ran side by side add up to more than the time of the run.
set -eu
cd "$(dirname "$0")/.."
from=${1:-${CARGO_TARGET_DIR:-target}/nextest/default/junit.xml}
awk '
	/<testcase / {
		match($0, / name="[^"]*"/); name = substr($0, RSTART + 7, RLENGTH - 8)
		match($0, / classname="[^"]*"/); of = substr($0, RSTART + 12, RLENGTH - 13)
		match($0, / time="[^"]*"/); time = substr($0, RSTART + 7, RLENGTH - 8)
		module = name; sub(/::.*/, "", module)
		print of "\t" module "\t" name "\t" time
	}
' "$from" | {
	rows=$(mktemp)
	trap 'rm -f "$rows"' EXIT
	cat >"$rows"
	echo "| s | tests | module |"
	echo "| ---: | ---: | --- |"
	awk -F '\t' '{ s[$1 " " $2] += $4; n[$1 " " $2]++ } END { for (m in s) printf "| %.0f | %d | %s |\n", s[m], n[m], m }' "$rows" | sort -t '|' -k 2 -rn
	echo
	echo "The slowest:"
	echo
	echo "| s | test |"
	echo "| ---: | --- |"
	sort -t "$(printf '\t')" -k 4 -rn "$rows" | head -n "${2:-40}" | awk -F '\t' '{ printf "| %.1f | %s %s |\n", $4, $1, $3 }'
}

#!/bin/bash
# Runs the tests that find defects by chance, again and again, in random order and with other random
# numbers each time.
#
#   SOAK_SECONDS=1200   when no more tests are started
#   SOAK_SEED=N         seed of everything that is random; without it one is drawn, and printed
#   SOAK_ONLY=FILTER    only these: an expression of cargo-nextest, `test(hammered)`
#
# What belongs here is found in the sources: each file of tests that uses testkit's `effort` or `steps`,
# has `#[ignore = "soak"]`, or properties. In every second round times come from a coarse clock
# (CAPRIOLE_CLOCK_STEP=26: counters of some processors advance so). A failure is printed with the
# command that repeats it.
set -u
cd "$(dirname "$0")/.." || exit 1
if [ "${CAPRIOLE_CLEAN-}" != 1 ]; then
	CAPRIOLE_CLEAN=1 exec scripts/clean.sh "$0" "$@"
fi
nextest=$(scripts/nextest.sh) || {
	echo "soak: needs cargo-nextest, which cannot be had: see above"
	exit 1
}
seconds=${SOAK_SECONDS:-1200}
seed=${SOAK_SEED:-$((RANDOM * 32768 + RANDOM))}
threads=$((2 * $(nproc)))
listed=$(mktemp -d) || exit 1
trap 'rm -rf "$listed"' EXIT

# The modules of tests that belong here, as an expression.
expression() {
	grep -rlE '#\[ignore = "soak"\]|effort::|steps::|\brounds\(|proptest!' crates/*/tests crates/*/src bench/tests --include='*.rs' |
		while read -r file; do
			crate=${file%%/tests/*}
			case $file in
			crates/testkit/*) continue ;;
			*/tests/it/main.rs) continue ;;
			*/tests/it/*)
				module=${file#*/tests/it/}
				module=${module%.rs}
				module=${module%/mod}
				kind=test
				;;
			*/src/*)
				crate=${file%%/src/*}
				module=${file#*/src/}
				module=${module%.rs}
				kind=lib
				;;
			*) continue ;;
			esac
			package=$(sed -n 's/^name = "\(.*\)"/\1/p' "$crate/Cargo.toml" | head -n 1)
			echo "(package(=$package) & kind($kind) & test(/^${module//\//::}::/))"
		done | sort -u | paste -sd '+'
}

filter="($(expression)) & (${SOAK_ONLY:-all()})"
cargo test -q --workspace --no-run || exit 1
"$nextest" nextest list --workspace --run-ignored all -E "$filter" --message-format json 2>/dev/null >"$listed/json" || exit 1
python3 - "$listed/json" >"$listed/tests" <<'E2' || exit 1
import json, sys
for suite in json.load(open(sys.argv[1]))["rust-suites"].values():
    for name, case in suite["testcases"].items():
        if case["filter-match"]["status"] == "matches":
            print(suite["binary-id"], name)
E2
number=$(wc -l <"$listed/tests")
[ "$number" -gt 0 ] || { echo "soak: no test is selected"; exit 1; }
echo "soak: $number tests, $seconds s, SOAK_SEED=$seed"

end=$((SECONDS + seconds))
round=0 run=0 failed=0 log=$listed/log
: >"$listed/failures"
while [ "$SECONDS" -lt "$end" ]; do
	round=$((round + 1))
	now=$((seed + round))
	step=$((round % 2 == 0 ? 26 : 0))
	# The order depends on the seed alone.
	shuf --random-source=<(yes "$now") "$listed/tests" >"$listed/order"
	while [ "$SECONDS" -lt "$end" ] && mapfile -t -n 16 some && [ ${#some[@]} -gt 0 ]; do
		these=$(printf '(binary_id(=%s) & test(=%s))\n' ${some[*]} | paste -sd '+')
		environment=(CAPRIOLE_SOAK=1 CAPRIOLE_SEED="$now" PROPTEST_RNG_SEED="$now")
		[ "$step" = 0 ] || environment+=(CAPRIOLE_CLOCK_STEP="$step")
		env "${environment[@]}" "$nextest" nextest run --workspace --profile soak --run-ignored all \
			--test-threads "$threads" -E "$these" >"$log" 2>&1
		status=$?
		summary=$(grep -E '^ *Summary \[' "$log" | tail -n 1)
		run=$((run + $(echo "$summary" | sed -n 's/.* \([0-9]*\)\(\/[0-9]*\)\? tests\? run:.*/\1/p' | grep . || echo 0)))
		if [ "$status" != 0 ]; then
			cat "$log"
			found=$(sed -n '/^ *Summary \[/,$p' "$log" | sed -nE 's/^ *(FAIL|TIMEOUT|SIG[A-Z]+|ABORT)[^)]*\) (.*)$/\1 \2/p' | sort -u)
			while read -r how binary name; do
				[ -n "$name" ] || continue
				failed=$((failed + 1))
				echo "$how $binary $name; again: ${environment[*]} cargo test -p ${binary%%::*} ${binary#*::} -- --include-ignored --exact $name" >>"$listed/failures"
			done <<<"$found"
			[ -n "$found" ] || {
				failed=$((failed + 1))
				echo "the runner ended with status $status: see above" >>"$listed/failures"
			}
		fi
	done <"$listed/order"
	echo "soak: round $round (CAPRIOLE_SEED=$now, clock step $step): $run tests run so far, $failed failed, $((end > SECONDS ? end - SECONDS : 0)) s left"
done
echo
echo "soak: SOAK_SEED=$seed, $round rounds, $seconds s"
sed 's/^/soak: /' "$listed/failures"
echo "$((run - failed)) passed, $failed failed"
[ "$failed" = 0 ]

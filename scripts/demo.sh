#!/bin/bash
# The demonstration: the system's sqlite3, a program that is not ours and knows nothing of
# us, is watched while it runs. Everything that is claimed is checked; the exit status
# is 0 only if all of it is true.
set -u
cd "$(dirname "$0")/.." || exit 1
capriole=${CAPRIOLE:-$(scripts/binary.sh)}
[ -x "$capriole" ] || { echo "demo: $capriole is not built; use \`make demo\`" >&2; exit 1; }
command -v sqlite3 >/dev/null || { echo "demo: sqlite3 is not installed; use \`make demo\`" >&2; exit 1; }

work=$(mktemp -d) || exit 1
program=""
clean_up() {
	[ -z "$program" ] || kill "$program" 2>/dev/null
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
wrong=0

if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold="" plain=""; fi
heading() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
# check TEXT COMMAND...: says whether what is claimed is so.
check() {
	local text=$1
	shift
	if "$@"; then
		echo "  ok     $text"
	else
		echo "  WRONG  $text"
		wrong=1
	fi
}
show() { printf '  $ %s\n' "$*"; }
seconds() { date +%s.%N; }
longer() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.1f", to - from }'; }
separate() { sed -e ':a' -e 's/\([0-9]\)\([0-9]\{3\}\)\($\|,\)/\1,\2\3/;ta' <<<"$1"; }

heading "1. A program that is not ours"
echo "  sqlite3 as the distribution ships it, stripped, answering questions about a table in memory."

# A table of 20,000 books, then questions, each a statement that is parsed, run and
# printed; the same in every run.
queries() {
	awk -v count="$1" 'BEGIN {
		print "CREATE TABLE book(id INTEGER PRIMARY KEY, title TEXT, year INTEGER, price INTEGER);"
		print "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
		print "INSERT INTO book SELECT i, printf(\"book %d\", i), 1500 + i * 7919 % 520, i * 31 % 97 FROM n;"
		print "CREATE INDEX by_year ON book(year);"
		for (i = 1; i <= count; i++) {
			id = (i * 7919) % 20000 + 1
			if (i % 3 == 0)
				printf "SELECT year, count(*), sum(price) FROM book WHERE year = %d;\n", 1500 + id % 520
			else if (i % 3 == 1)
				printf "SELECT id, title, year, price FROM book WHERE id BETWEEN %d AND %d;\n", id, id + 5
			else
				printf "UPDATE book SET price = price + 1 WHERE id = %d;\n", id
		}
		print "SELECT count(*), sum(price), sum(length(title)) FROM book;"
	}'
}

# Long enough to come to it while it works: so many that they take the processor more
# than five seconds here. (What the clock says depends on what else the machine does.)
count=100000
TIMEFORMAT='%R %U'
while :; do
	queries "$count" >"$work/queries.sql"
	{ time sqlite3 :memory: <"$work/queries.sql" >"$work/alone.txt" || exit 1; } 2>"$work/time"
	read -r took busy <"$work/time"
	[ "${busy%.*}" -lt 5 ] || break
	count=$(awk -v count="$count" -v busy="$busy" 'BEGIN { print int(count * 7 / (busy + 0.1)) + 1 }')
done
echo "  Alone it answers $(separate "$count") questions in ${took%??} s and prints $(separate "$(wc -l <"$work/alone.txt")") lines."

heading "2. It is started again, and after a second Capriole comes to it"
(
	sqlite3 :memory: <"$work/queries.sql" >"$work/watched.txt" &
	echo "$!" >"$work/pid"
	wait "$!"
	status=$?
	seconds >"$work/ended"
	exit "$status"
) &
waiter=$!
from=$(seconds)
sleep 1
program=$(cat "$work/pid")
events=(
	-e 'libsqlite3:sqlite3_prepare* database=$arg1 text=$arg2 length=$arg3'
	-e 'libsqlite3:sqlite3_step statement=$arg1'
	-e 'libsqlite3:sqlite3_column_* statement=$arg1 column=$arg2'
	-e 'libsqlite3:sqlite3_finalize statement=$arg1'
)
show "capriole record -p $program --duration 2s --buffer-size 128M \\"
for ((i = 1; i < ${#events[@]}; i += 2)); do
	printf "      -e '%s'%s\n" "${events[i]}" "$([ "$i" = $((${#events[@]} - 1)) ] || echo ' \')"
done
if ! "$capriole" record -p "$program" --duration 2s --buffer-size 128M "${events[@]}" -o "$work/trace" \
	</dev/null 2>"$work/said"; then
	sed 's/^/  /' "$work/said"
	if grep -q -e 'not permitted' -e 'ptrace' "$work/said"; then
		cat <<-END

		  This system does not let one program trace another. What helps, as the case may be:
		    run it as root                    sudo CAPRIOLE=$capriole scripts/demo.sh
		    in a container                    docker run --cap-add SYS_PTRACE ...
		    Yama allows own children only     sysctl kernel.yama.ptrace_scope=0
		END
	fi
	exit 1
fi
sed -e 's/^/  /' -e "s|$work/||" -e '/capriole: show it/d' "$work/said"
kill -0 "$program" 2>/dev/null
check "sqlite3 is still at work when Capriole has left" test $? = 0
! grep -q 'capriole' "/proc/$program/maps" 2>/dev/null
check "nothing of Capriole is left in its memory" test $? = 0

heading "3. What it did, call by call"
show "capriole report | head"
"$capriole" report "$work/trace" 2>/dev/null | head -n 18 | sed 's/^/  /'

heading "4. The same in sums"
show "capriole report --summary | head"
"$capriole" report "$work/trace" --summary | head -n 14 | sed -e 's/^/  /' -e "s|$work/||"

heading "5. Is it true?"
events=$("$capriole" report "$work/trace" --summary --json | sed 's/.*"events":\([0-9]*\).*/\1/')
check "$(separate "$events") events were recorded" test "$events" -gt 0
! grep -q 'LOST' "$work/said"
check "none was lost" test $? = 0
if command -v babeltrace2 >/dev/null; then
	babeltrace2 "$work/trace" --component sink.utils.counter --params=step=+0 >"$work/counted" 2>&1
	read_by=$(awk '/ Event message/ { gsub(/,/, "", $1); print $1 }' "$work/counted")
	check "babeltrace2, which is not ours either, reads $(separate "${read_by:-0}") events from the trace" \
		test "${read_by:-0}" = "$events"
else
	echo "  -      babeltrace2 is not installed: the trace was not read by another program"
fi
wait "$waiter"
status=$?
took_watched=$(longer "$from" "$(cat "$work/ended")")
program=""
check "sqlite3 ended by itself, with status $status" test "$status" = 0
check "its $(separate "$(wc -c <"$work/watched.txt")") bytes of output are the same as without Capriole (cmp)" \
	cmp "$work/alone.txt" "$work/watched.txt"
echo "         It took ${took%??} s alone, and $took_watched s with Capriole there and the reports made meanwhile."

heading "6. What an event costs"
show "capriole bench hit --threads 1 --rows floor,capriole,kernel"
if "$capriole" bench hit --threads 1 --rows floor,capriole,kernel --json </dev/null >"$work/bench.json" 2>"$work/bench.said"; then
	awk '
		/"name":/    { gsub(/[",]/, "", $2); name = $2 }
		/"over_bare_ns":/ { sub(/,/, "", $2); ns[name] = $2 }
		/"q1_ns":/   { q1[name] = $2 + 0 }
		/"q3_ns":/   { q3[name] = $2 + 0 }
		/"skipped":/ { sub(/.*"skipped": "/, ""); sub(/",?$/, ""); why[name] = $0 }
		function row(name, text) {
			if (name in ns) printf "  %9.1f ns   %s\n", ns[name], text
			else printf "          -      %s (%s)\n", text, why[name]
		}
		END {
			print "  More than the bare call of an empty function costs, median of 9 rounds; recorded"
			print "  are time, thread, event and two arguments:"
			row("capriole.record2", "Capriole")
			row("floor.record", "the same record in assembly written by hand for this function")
			row("kernel.uprobe", "a uprobe of this kernel")
			if (("capriole.record2" in ns) && ("kernel.uprobe" in ns))
				printf "  Capriole costs %.0f times less than a uprobe here.\n", ns["kernel.uprobe"] / ns["capriole.record2"]
			for (name in q1)
				if (name != "bare" && q3[name] > 1.5 * q1[name]) noisy = 1
			if (noisy)
				print "  The rounds differed much, the machine is busy: use `make bench` when it is not."
		}' "$work/bench.json"
else
	sed 's/^/  /' "$work/bench.said"
	check "the cost could be measured" false
fi

echo
if [ "$wrong" != 0 ]; then
	echo "Not all of it is as claimed: see WRONG above."
	exit 1
fi
echo "All of it is as claimed. Now with a program of yours: capriole record -p PID -e ':*'"

# Runs the program in the directory $1 under a session daemon of LTTng that only it can
# see, with what comes after; then says how many events are in the trace.
exec 3>&1 >&2
export HOME="$1" LTTNG_HOME="$1" LTTNG_UST_REGISTER_TIMEOUT=-1
rm -rf "$1/trace" "$1/.lttng"
mkdir /run/lttng
lttng-sessiond --daemonize --no-kernel
lttng --no-sessiond create bench --output="$1/trace"
lttng enable-channel --userspace --session=bench --subbuf-size=4M --num-subbuf=4 calls
lttng enable-event --userspace --session=bench --channel=calls capriole_bench:hit
lttng start bench
"$1/program" >&3
lttng stop bench
babeltrace2 "$1/trace" --component=sink.utils.counter >&3
rm -rf "$1/trace"

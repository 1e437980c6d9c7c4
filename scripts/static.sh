#!/bin/bash
# Builds target/static/capriole: the command, linked statically, stripped. With `test` as $1 it is built
# in the profile of the tests; it stays where cargo puts it, and the path is printed.
#
# Only the linking differs from that of the other command, so all crates are compiled once for both.
set -eu
cd "$(dirname "$0")/.."

# shellcheck source=scripts/apt.sh
. scripts/apt.sh static

if [ "$(${CC:-cc} -print-file-name=libc.a)" = libc.a ]; then
	say "there is no static C library, libc.a; Debian has it in libc6-dev, Fedora in glibc-static"
	exit 1
fi

build() {
	cargo rustc -q -p capriole-static --bin capriole-static "$@" -- \
		-C target-feature=+crt-static >&2
}

if [ "${1-}" = test ]; then
	build
	echo "${CARGO_TARGET_DIR:-target}/debug/capriole-static"
	exit
fi
build --release
mkdir -p target/static
${STRIP:-strip} -o target/static/capriole "$(scripts/binary.sh)-static"
ls -l target/static/capriole | awk '{ printf "target/static/capriole: %.1f MB\n", $5 / 1e6 }'

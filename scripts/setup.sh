#!/bin/bash
# Looks for what building, testing and the demo need, and installs what is missing
# with apt-get. A machine that has everything is not touched and needs no network.
#
#   scripts/setup.sh build|library|test|soak|demo
#
# `library` is for libcapriole alone, which needs a C compiler only; `soak` is `test`, and a target of rust.
#
# A package without which the work cannot be done is an error; one that only some
# tests compare with is a message, and those tests say that they leave something out.
set -u
cd "$(dirname "$0")/.." || exit 1
for_what=${1:-build}

# shellcheck source=scripts/apt.sh
. scripts/apt.sh setup

# Programs (or files) and the Debian packages they are in.
needed="cc:gcc ld:binutils objcopy:binutils"
wanted=""
servers=""
case $for_what in
build | library) ;;
test | soak)
	wanted="g++:g++ musl-gcc:musl-tools strace:strace babeltrace2:babeltrace2 sqlite3:sqlite3 openssl:openssl python3:python3 pip3:python3-pip unshare:util-linux clang:clang clang++:clang /usr/lib/x86_64-linux-gnu/libc++.so:libc++-dev /usr/lib/x86_64-linux-gnu/libc++abi.so:libc++abi-dev ld.lld:lld gdb:gdb bpftrace:bpftrace perf:linux-perf dtrace:systemtap-sdt-dev valgrind:valgrind qemu-x86_64:qemu-user pkg-config:pkg-config groff:groff-base mandoc:mandoc man:man-db zsh:zsh fish:fish jq:jq curl:curl debuginfod-find:debuginfod gdc:gdc"
	servers="redis-server:redis-server /usr/sbin/nginx:nginx pg_createcluster:postgresql memcached:memcached"
	;;
demo)
	needed="$needed sqlite3:sqlite3"
	wanted="babeltrace2:babeltrace2"
	;;
*)
	say "say build, library, test, soak or demo, not \`$for_what\`"
	exit 2
	;;
esac

# The packages of those programs in the list $1 that are not there.
missing() {
	local pair packages=""
	for pair in $1; do
		have "${pair%%:*}" || packages="$packages ${pair#*:}"
	done
	# The C library's headers come with gcc only as a recommendation.
	if [ "$1" = "$needed" ] && ! echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1; then
		packages="$packages libc6-dev"
	fi
	echo "$packages" | tr ' ' '\n' | sort -u | tr '\n' ' ' | sed 's/^ *//; s/ *$//'
}

packages=$(missing "$needed")
if [ -n "$packages" ] && ! install "$packages"; then
	packages=$(missing "$needed")
	[ -z "$packages" ] || say "cannot go on without: $packages"
	[ -z "$packages" ] || exit 1
fi
packages=$(missing "$wanted")
if [ -n "$packages" ] && ! install "$packages"; then
	say "going on without: $(missing "$wanted") (what is compared with them is left out)"
fi
packages=$(missing "$servers")
if [ -n "$packages" ] && ! install_servers "$packages"; then
	say "going on without: $(missing "$servers") (the tests of docs/cookbook.md that need them are left out)"
fi

[ "$for_what" != library ] || exit 0

# The compiler of the distribution is often too old, so rustup is what is named.
version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
found=$(cargo --version 2>/dev/null | awk '{ print $2 }')
if [ -z "$found" ] || [ "$(printf '%s\n' "$version" "${found%%-*}" | sort -V | head -n 1)" != "$version" ]; then
	say "cargo $version or later is needed (here: ${found:-none}); get it with: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
	exit 1
fi

# It is seen whether the command compiles for musl where rust has a standard library for that.
musl=x86_64-unknown-linux-musl
if [ "$for_what" = soak ] && [ ! -d "$(rustc --print sysroot)/lib/rustlib/$musl/lib" ]; then
	{ have rustup && timeout 300 rustup target add "$musl" >&2; } ||
		say "going on without rust's library for $musl (nothing is compiled for it)"
fi

#!/bin/bash
# Installs the tools that `capriole bench hit` and `bench marker` compare with: Debian's by apt-get into the
# system, Frida by pip into a directory of its own beside the build. What cannot be installed
# is a message, and `bench hit` skips its rows; this script does not fail for that.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/apt.sh
. scripts/apt.sh peers

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# Each alone, so that one that is not to be had does not keep the others out.
want() {
	local row=$1 package
	shift
	for package in "$@"; do
		installed "$package" || install "$package" ||
			say "going on without $package: the row $row will be skipped"
	done
}

want "of every peer" gcc libc6-dev
want bpftrace.count bpftrace
want lttng_ust lttng-tools liblttng-ust-dev babeltrace2
want uftrace uftrace
want xray_fdr clang
# The source of minigzip, for `bench marker`.
want minigzip zlib1g-dev
# The runtime of XRay, for the version of clang that is there.
version=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
[ -z "$version" ] || want xray_fdr "libclang-rt-$version-dev"
want gdb.fast_tracepoint gdb gdbserver

frida=$(dirname "$(dirname "$(scripts/binary.sh)")")/peers/frida
if ! "$frida/bin/python3" -c 'import frida' 2>/dev/null; then
	python3 -c 'import ensurepip' 2>/dev/null || want frida python3 python3-venv
	say "installing Frida into $frida"
	{ python3 -m venv "$frida" && "$frida/bin/pip" install -q --disable-pip-version-check frida; } </dev/null >&2 ||
		say "going on without Frida: the row frida will be skipped"
fi
exit 0

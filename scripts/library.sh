#!/bin/sh
# Builds libcapriole.so and libcapriole.a from library/ into the directory $1, for a helper at the
# path $2. CC and CFLAGS are respected.
set -eu
out=$1
helper=$2
here=$(dirname "$0")/../library
cc=${CC:-cc}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -1)
mkdir -p "$out/objects"
objects=
for source in hit.S memory.c helper.c probe.c run.c return.c events.c; do
	object=$out/objects/${source%.*}.o
	# shellcheck disable=SC2086
	$cc ${CFLAGS--O2 -g} -std=gnu99 -D_GNU_SOURCE -fPIC -mgeneral-regs-only -fvisibility=hidden \
		-fno-stack-protector -ftls-model=initial-exec -fcf-protection=none \
		-Wall -Wextra -DCAPRIOLE_HELPER="\"$helper\"" -c "$here/$source" -o "$object"
	# Its own code in a section that has a beginning and an end: no probe must be in it.
	objcopy --rename-section .text=capriole_text --rename-section .text.unlikely=capriole_text \
		"$object"
	objects="$objects $object"
done
# shellcheck disable=SC2086
$cc -shared -o "$out/libcapriole.so.$version" $objects -Wl,-soname,libcapriole.so.0 \
	-Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now -Wl,-z,start-stop-visibility=hidden \
	-Wl,--no-undefined
ln -sf "libcapriole.so.$version" "$out/libcapriole.so.0"
ln -sf libcapriole.so.0 "$out/libcapriole.so"
# One object, in which everything hidden is local: no name of the library's own meets one of the
# program's.
# shellcheck disable=SC2086
ld -r -o "$out/objects/capriole.o" $objects
objcopy --localize-hidden "$out/objects/capriole.o"
rm -f "$out/libcapriole.a"
ar rcs "$out/libcapriole.a" "$out/objects/capriole.o"

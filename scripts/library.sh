#!/bin/sh
# Builds libcapriole.so and libcapriole.a from library/ into the directory $1, for a helper at the
# path $2; with `static` as $3 only libcapriole.a.
#
# CC, CFLAGS, LDFLAGS, LD, OBJCOPY and AR are respected. Flags without which the code would not be
# what it has to be come after those of CFLAGS.
set -eu
out=$1
helper=$2
kind=${3:-all}
here=$(cd "$(dirname "$0")/../library" && pwd)
cc=${CC:-cc}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -1)
mkdir -p "$out/objects"
# The objects are the positional parameters: a list, whatever characters the directory has.
set --
for source in "$here"/*.S "$here"/*.c; do
	object=$out/objects/$(basename "$source").o
	# Handlers run in the middle of any function: no vector register may change, no canary of the
	# C library's may be read, and no function of it may be called, not even a checked one. LTO would
	# leave no code that symbols can be hidden in below.
	# shellcheck disable=SC2086
	$cc ${CFLAGS--O2 -g} -std=gnu99 -D_GNU_SOURCE -U_FORTIFY_SOURCE -fPIC -mgeneral-regs-only \
		-fvisibility=hidden -fno-stack-protector -ftls-model=initial-exec -fcf-protection=none \
		-fno-lto -Wall -Wextra -DCAPRIOLE_HELPER="\"$helper\"" -c "$source" -o "$object"
	set -- "$@" "$object"
done
if [ "$kind" = all ]; then
	# Linkers export what they define themselves (__start_SECTION), whatever its visibility is.
	echo '{ global: capriole_*; local: *; };' >"$out/objects/exports"
	# shellcheck disable=SC2086
	$cc -shared -o "$out/libcapriole.so.$version" "$@" ${LDFLAGS-} -Wl,-soname,libcapriole.so.0 \
		-Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now -Wl,--no-undefined -Wl,--version-script="$out/objects/exports"
	ln -sf "libcapriole.so.$version" "$out/libcapriole.so.0"
	ln -sf libcapriole.so.0 "$out/libcapriole.so"
fi
# One object, in which everything hidden is local: no name of the library's own meets one of the
# program's.
${LD:-ld} -r -o "$out/objects/all" "$@"
${OBJCOPY:-objcopy} --localize-hidden "$out/objects/all" "$out/objects/capriole"
mv "$out/objects/capriole" "$out/objects/capriole.o"
rm -f "$out/libcapriole.a" "$out/objects/all"
${AR:-ar} rcs "$out/libcapriole.a" "$out/objects/capriole.o"
rm "$out/objects/capriole.o"

#!/bin/sh
# Builds libcapriole for the helper PREFIX/bin/capriole, and installs the library, its header, its
# file for pkg-config and its manual pages.
#
# PREFIX, LIBDIR, INCLUDEDIR, MANDIR: absolute; DESTDIR: put before them, and no part of any path that
# is written into a file. BUILD: a directory for what is made on the way.
set -eu
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
prefix=${prefix%/}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
mandir=${MANDIR:-$prefix/share/man}
destdir=${DESTDIR-}
build=${BUILD:-target/library/install}
for directory in "$prefix" "$libdir" "$includedir" "$mandir"; do
	case $directory in
	/* | "") ;;
	*)
		echo "install: \`$directory\` is not an absolute path, and parts of it are written into the library" >&2
		exit 2
		;;
	esac
done

scripts/library.sh "$build" "$prefix/bin/capriole"
scripts/pkgconfig.sh "$prefix" "$libdir" "$includedir" "$libdir/pkgconfig" \
	"$prefix/bin/capriole" >"$build/capriole.pc"

install -d "$destdir$libdir/pkgconfig" "$destdir$includedir/capriole"
for file in "$build"/libcapriole.so.*; do
	# The library itself; its links are made anew.
	[ -h "$file" ] || install -m 755 "$file" "$destdir$libdir/"
done
for link in libcapriole.so.0 libcapriole.so; do
	ln -sf "$(readlink "$build/$link")" "$destdir$libdir/$link"
done
install -m 644 "$build/libcapriole.a" "$destdir$libdir/"
install -m 644 "$build/capriole.pc" "$destdir$libdir/pkgconfig/"
install -m 644 include/capriole/probe.h "$destdir$includedir/capriole/"
for page in man/*.[0-9]; do
	install -D -m 644 "$page" "$destdir$mandir/man${page##*.}/${page##*/}"
done
# The loader finds libraries by a list, which only root can bring up to date.
if [ -z "$destdir" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then
	ldconfig
fi

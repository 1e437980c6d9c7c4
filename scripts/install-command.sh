#!/bin/sh
# Installs the command $1, stripped, with its manual pages and its completions for bash, zsh and fish,
# and the benchmarks $2 if they are given.
#
# PREFIX, INCLUDEDIR, MANDIR: absolute; DESTDIR: put before them. ZSHDIR: where zsh looks for
# completions. STRIP: the program `strip`. ALSO: what the closing line is to name besides.
set -eu
cd "$(dirname "$0")/.."
command=$1
bench=${2-}
prefix=${PREFIX:-/usr/local}
prefix=${prefix%/}
includedir=${INCLUDEDIR:-$prefix/include}
mandir=${MANDIR:-$prefix/share/man}
zshdir=${ZSHDIR:-$prefix/share/zsh/site-functions}
root=${DESTDIR-}
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT

"$command" generate man "$generated"
"$command" generate completions "$generated"

# Debug information is nine tenths of a program that was built for tests or measurements.
for program in "$command" ${bench:+"$bench"}; do
	name=$(basename "$program")
	install -d "$root$prefix/bin"
	${STRIP:-strip} -o "$generated/$name" "$program"
	install -m 755 "$generated/$name" "$root$prefix/bin/$name"
done
install -D -m 644 include/capriole/marker.h "$root$includedir/capriole/marker.h"
for page in "$generated"/share/man/man*/*; do
	# Without the benchmarks there is nothing to be described.
	[ -n "$bench" ] || [ "${page##*/}" != capriole-bench.1 ] || continue
	install -D -m 644 "$page" "$root$mandir/${page#"$generated"/share/man/}"
done
install -D -m 644 "$generated/share/bash-completion/completions/capriole" \
	"$root$prefix/share/bash-completion/completions/capriole"
install -D -m 644 "$generated/share/zsh/site-functions/_capriole" "$root$zshdir/_capriole"
install -D -m 644 "$generated/share/fish/vendor_completions.d/capriole.fish" \
	"$root$prefix/share/fish/vendor_completions.d/capriole.fish"

size=$(wc -c <"$root$prefix/bin/capriole" | awk '{ printf "%.1f MB", $1 / 1e6 }')
echo "installed $("$command" -V): $root$prefix/bin/capriole ($size, stripped)${bench:+, capriole-bench}${ALSO:+, $ALSO}, manual pages in $root$mandir, completions for bash, zsh and fish"

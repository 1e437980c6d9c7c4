#!/bin/bash
# Makes Debian packages of programs that have been built.
#
#   scripts/deb.sh --binary PATH [--bench PATH] [--out DIRECTORY]
#
# PATH: the commands `capriole` and `capriole-bench`, of any build; the packages have them without
# debug information. The packages are written to DIRECTORY (target/deb), their paths to standard
# output:
#
#   capriole         the command, manual pages, completions, documentation
#   capriole-bench   the benchmarks, with --bench
#   libcapriole0     the library of programs that probe themselves
#   libcapriole-dev  headers, static library, pkg-config, manual pages
#
# DEBFULLNAME and DEBEMAIL: the maintainer. DEB_REVISION: the Debian revision, 1 unless given.
# DEB_COMPRESSION: xz unless given.
# SOURCE_DATE_EPOCH: the time of all files; unless given, that of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/apt.sh
. scripts/apt.sh deb

binary="" bench="" out=target/deb
while [ $# -gt 0 ]; do
	case $1 in
	--binary) binary=$2 ;;
	--bench) bench=$2 ;;
	--out) out=$2 ;;
	*)
		say "unknown option \`$1\`; see the head of scripts/deb.sh"
		exit 2
		;;
	esac
	shift 2
done
if [ ! -x "$binary" ]; then
	say "give the command with --binary PATH"
	exit 2
fi
for tool in dpkg-deb objdump strip gzip; do
	have "$tool" || { say "$tool is needed (Debian packages dpkg, binutils, gzip)"; exit 1; }
done

upstream=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
version=$upstream-${DEB_REVISION:-1}
triplet=x86_64-linux-gnu
maintainer="${DEBFULLNAME:-The Capriole developers} <${DEBEMAIL:-capriole@localhost}>"
if [ -z "${SOURCE_DATE_EPOCH-}" ]; then
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
fi
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
staged=$work/staged
export DESTDIR=$staged PREFIX=/usr LIBDIR=/usr/lib/$triplet MANDIR=/usr/share/man INCLUDEDIR=/usr/include
BUILD=$work/build scripts/install-library.sh
ZSHDIR=/usr/share/zsh/vendor-completions scripts/install-command.sh "$binary" ${bench:+"$bench"} >&2

# Moves files (patterns below the staged root) into a package.
into() {
	local package=$1 pattern path
	shift
	for pattern in "$@"; do
		for path in "$staged"/$pattern; do
			local place=$work/$package/${path#"$staged"/}
			mkdir -p "$(dirname "$place")"
			mv "$path" "$place"
		done
	done
}
if [ -n "$bench" ]; then
	into capriole-bench usr/bin/capriole-bench usr/share/man/man1/capriole-bench.1
fi
into libcapriole-dev usr/include "usr/lib/$triplet/libcapriole.a" "usr/lib/$triplet/libcapriole.so" \
	"usr/lib/$triplet/pkgconfig" usr/share/man/man3 usr/share/man/man7/capriole.7
into libcapriole0 "usr/lib/$triplet/libcapriole.so.*"
into capriole usr/bin usr/share
left=$(find "$staged" ! -type d)
[ -z "$left" ] || { say "in no package: $left"; exit 1; }
strip --strip-unneeded --remove-section=.comment "$work/libcapriole0/usr/lib/$triplet/"*.so.*.*
chmod 644 "$work/libcapriole0/usr/lib/$triplet/"*.so.*.*
strip --strip-debug "$work/libcapriole-dev/usr/lib/$triplet/libcapriole.a"
mkdir -p "$work/capriole/usr/share/doc/capriole"
cp -R docs README.md "$work/capriole/usr/share/doc/capriole/"

# The packages of the libraries that programs need, with the oldest versions that have all the
# symbols: glibc and GCC's runtime name them after their own versions.
depends() {
	objdump -p "$@" | awk '
		$1 == "NEEDED" { needed[$2] = 1 }
		$1 ~ /^0x/ && $4 ~ /^GLIBC_[0-9.]+$/ { libc = newer(libc, substr($4, 7)) }
		$1 ~ /^0x/ && $4 ~ /^GCC_[0-9.]+$/ { gcc = newer(gcc, substr($4, 5)) }
		function newer(a, b,   x, y, n, i) {
			n = split(a, x, "."); split(b, y, ".")
			for (i = 1; i <= n || i in y; i++)
				if (x[i] + 0 != y[i] + 0) return x[i] + 0 > y[i] + 0 ? a : b
			return a == "" ? b : a
		}
		END {
			for (name in needed) {
				if (name ~ /^(libc|libm|libdl|libpthread|librt)\.so/ || name ~ /^ld-linux/) {
					if (!done++) print "libc6" (libc == "" ? "" : " (>= " libc ")")
				} else if (name ~ /^libgcc_s\.so/) {
					print "libgcc-s1" (gcc == "" ? "" : " (>= " gcc ")")
				} else {
					print "deb: which package has " name "?" >"/dev/stderr"
					exit 1
				}
			}
		}
	' | LC_ALL=C sort | sed ':all; N; $! b all; s/\n/, /g'
}

# Completes a package whose control fields, from Depends on, are on standard input: documents,
# checksums, owners and times.
finish() {
	local package=$1 root=$work/$1
	local docs=$root/usr/share/doc/$package
	mkdir -p "$docs" "$root/DEBIAN"
	{
		echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
		echo 'Upstream-Name: Capriole'
		echo
		echo 'Files: *'
		echo "Copyright: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y) The Capriole developers"
		echo 'License: Expat or Apache-2.0'
		echo
		echo 'License: Expat'
		sed -n '5,$p' LICENSE-MIT | sed 's/^$/./; s/^/ /'
		echo
		echo 'License: Apache-2.0'
		echo ' On Debian systems the text of this licence is in'
		echo ' /usr/share/common-licenses/Apache-2.0.'
	} >"$docs/copyright"
	gzip -9nc CHANGELOG.md >"$docs/changelog.gz"
	{
		echo "capriole ($version) unstable; urgency=medium"
		echo
		echo '  * Packaged by the source itself (make deb).'
		echo
		echo " -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
	} | gzip -9nc >"$docs/changelog.Debian.gz"
	find "$root/usr/share/man" -type f -exec gzip -9n {} + 2>/dev/null || true
	(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z |
		xargs -0 md5sum >DEBIAN/md5sums)
	{
		echo "Package: $package"
		echo 'Source: capriole'
		echo "Version: $version"
		echo 'Architecture: amd64'
		echo "Maintainer: $maintainer"
		echo "Installed-Size: $(du -k -s --apparent-size --exclude=DEBIAN "$root" | cut -f 1)"
		cat
	} >"$root/DEBIAN/control"
	find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	local file=$out/${package}_${version}_amd64.deb
	dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$root" "$file" >&2
	echo "$file"
}

mkdir -p "$out"
files=()
build() { files+=("$(finish "$1")"); }

build capriole <<END
Depends: $(depends "$work/capriole/usr/bin/capriole")
Suggests: babeltrace2, debuginfod, ${bench:+capriole-bench, }libcapriole-dev
Section: devel
Priority: optional
Description: low-overhead dynamic function tracer
 Capriole records what a running native program does, call by call, without
 restarting or recompiling it: arguments, results, call stacks and latencies
 of functions, inlined copies, source lines and static markers (USDT). A hit
 costs nanoseconds, as it needs neither a trap nor a system call.
END
if [ -n "$bench" ]; then
	build capriole-bench <<END
Depends: $(depends "$work/capriole-bench/usr/bin/capriole-bench"), capriole (= $version)
Section: devel
Priority: optional
Description: low-overhead dynamic function tracer - benchmarks
 The program behind "capriole bench": it measures what a hit of a probe costs
 on this machine, next to the same work written by hand, to the probes of the
 kernel and to other tools.
END
fi
# shellcheck disable=SC2086
library=$(depends "$work/libcapriole0/usr/lib/$triplet/"*.so.*.*)
mkdir -p "$work/libcapriole0/DEBIAN"
echo 'activate-noawait ldconfig' >"$work/libcapriole0/DEBIAN/triggers"
echo "libcapriole 0 libcapriole0 (>= $upstream)" >"$work/libcapriole0/DEBIAN/shlibs"
build libcapriole0 <<END
Depends: ${library:+$library, }capriole (>= $upstream)
Section: libs
Priority: optional
Multi-Arch: same
Description: probes that a program puts into itself
 libcapriole has the interface of the kernel's kprobes for user space: handlers
 before and after any instruction of the program and its libraries, at returns,
 and functions in the place of others. The command capriole serves the program
 as a helper process.
END
build libcapriole-dev <<END
Depends: libcapriole0 (= $version)
Section: libdevel
Priority: optional
Description: probes that a program puts into itself - development files
 Headers, static library, manual pages and the file for pkg-config of
 libcapriole; and capriole/marker.h, static markers (USDT) without any library.
END

printf '%s\n' "${files[@]}"
if have lintian; then
	# The maintainer's address is the packager's affair.
	lintian --allow-root --fail-on error,warning \
		--suppress-tags bogus-mail-host-in-debian-changelog,bogus-mail-host,initial-upload-closes-no-bugs \
		"${files[@]}" >&2 || { say "lintian has complaints: see above"; exit 1; }
else
	say "skipped: lintian is not installed, so the packages are not checked by it"
fi

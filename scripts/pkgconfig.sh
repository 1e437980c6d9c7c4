#!/bin/sh
# Prints the file for pkg-config of a library in the directory $2 with headers in $3, installed with
# the prefix $1, and with the helper $5. What is below the prefix is found from where the file itself is
# ($4, a directory), so that the whole may be moved, or lie below a DESTDIR.
set -eu
prefix=$1 libdir=$2 includedir=$3 own=$4 helper=$5
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml" | head -1)

# The way up from a directory below the prefix; nothing for another one.
up() {
	case $1/ in
	"$prefix"/*) echo "${1#"$prefix"}" | sed 's,/[^/][^/]*,/..,g' ;;
	esac
}
below() {
	case $1/ in
	"$prefix"/*) echo "\${prefix}${1#"$prefix"}" ;;
	*) echo "$1" ;;
	esac
}

up=$(up "$own")
if [ -n "$up" ]; then
	echo "prefix=\${pcfiledir}$up"
else
	echo "prefix=$prefix"
fi
cat <<END
exec_prefix=\${prefix}
libdir=$(below "$libdir")
includedir=$(below "$includedir")
helper=$(below "$helper")

Name: capriole
Description: dynamic probes that a program puts into itself
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lcapriole
END

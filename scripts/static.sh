#!/bin/bash
# Builds target/static/capriole: the command, linked statically with musl, stripped. With `test` as $1
# it is built without optimisation, for tests; it stays where cargo puts it, and the path is printed.
set -eu
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-musl

# shellcheck source=scripts/apt.sh
. scripts/apt.sh static

# The standard library for that target comes with rustup; distributions have packages of it.
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
	have rustup && rustup target add "$target" >&2 || {
		say "rust has no standard library for $target; get it with: rustup target add $target"
		exit 1
	}
fi
if [ "${1-}" = test ]; then
	# In the profile of the tests, whose macros are there already, without its optimisation.
	plain=(--config profile.dev.opt-level=0 --config profile.dev.debug=false)
	for package in $(sed -n 's/^\[profile\.dev\.package\.\([a-z].*\)\]$/\1/p' Cargo.toml); do
		plain+=(--config "profile.dev.package.$package.opt-level=0")
	done
	cargo build -q -p capriole-cli --target "$target" "${plain[@]}" >&2
	echo "${CARGO_TARGET_DIR:-target}/$target/debug/capriole"
	exit
fi
cargo build --release -p capriole-cli --target "$target"
built=$(scripts/binary.sh)
built=${built%/release/capriole}/$target/release/capriole
mkdir -p target/static
${STRIP:-strip} -o target/static/capriole "$built"
ls -l target/static/capriole | awk '{ printf "target/static/capriole: %.1f MB\n", $5 / 1e6 }'

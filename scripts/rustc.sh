#!/bin/bash
# cargo calls this for each crate of the workspace (.cargo/config.toml), with the compiler as $1.
#
# Compiles test code without optimisation: half of the time of a build was the optimiser's work on
# tests, which wait for programs more than they compute. What they test, the libraries and the
# command, has the level of its profile. In the profile `release` tests are optimised, too; and those of
# codegen always, which run code for as long as others wait.
for argument; do
	case $argument in
	--test) test=1 ;;
	opt-level=3) release=1 ;;
	esac
done
if [ -n "${test-}" ] && [ -z "${release-}" ] && [ "${CARGO_PKG_NAME-}" != capriole-codegen ]; then
	# The last of several levels counts.
	set -- "$@" -C opt-level=0
fi
exec "$@"

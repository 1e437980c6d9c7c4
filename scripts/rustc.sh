#!/bin/bash
# cargo calls this for each crate of the workspace (.cargo/config.toml), with the compiler as $1.
#
# Compiles test code without optimisation: half of the time of a build was the optimiser's work on
# tests, which wait for programs more than they compute. What they test, the libraries and the
# command, has the level of its profile. In the profile `release`, the one without debug assertions,
# tests are optimised, too; and those in tests/it of insn and codegen always, which run code for as
# long as others wait.
for argument; do
	case $argument in
	--test) test=1 ;;
	debug-assertions=on) checked=1 ;;
	esac
done
case ${CARGO_PKG_NAME-}/${CARGO_CRATE_NAME-} in
capriole-insn/it | capriole-codegen/it) ;;
*)
	# The last of several levels counts.
	[ -z "${test-}" ] || [ -z "${checked-}" ] || set -- "$@" -C opt-level=0
	;;
esac
exec "$@"

# Installing Debian packages, for scripts that source this with the name that their messages
# are to begin with.
apt_for=$1

say() { echo "$apt_for: $*" >&2; }
# True for a program that is there, or a file if $1 is a path.
have() { case $1 in /*) [ -e "$1" ] ;; *) command -v "$1" >/dev/null 2>&1 ;; esac; }

# Installs the packages in the list $1; fails if that cannot be done.
install() {
	local packages=$1 as=""
	if ! have apt-get; then
		say "there is no apt-get here; install with your package manager what Debian calls: $packages"
		return 1
	fi
	if [ "$(id -u)" != 0 ]; then
		as="sudo -n"
		if ! have sudo || ! sudo -n true 2>/dev/null; then
			say "not root, and sudo wants a password; please run: sudo apt-get install $packages"
			return 1
		fi
	fi
	say "installing $packages"
	# The lists of packages may be there already, and may be too old.
	local get="env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=1 -o Acquire::http::Timeout=30"
	# shellcheck disable=SC2086
	{
		$as $get --no-install-recommends install $packages ||
			{ $as $get update && $as $get --no-install-recommends install $packages; }
	} </dev/null >&2
}

# Installs packages of servers, as `install` does, without starting these: neither now nor when the
# machine starts again. The services must be called as their packages.
install_servers() (
	policy=/usr/sbin/policy-rc.d
	as=""
	[ "$(id -u)" = 0 ] || as="sudo -n"
	# Without rights `install` says what is missing.
	if [ ! -e "$policy" ] && printf '#!/bin/sh\nexit 101\n' | $as tee "$policy" >/dev/null 2>&1; then
		trap '$as rm -f "$policy"' EXIT
		$as chmod 755 "$policy"
	fi
	install "$1" || exit
	have systemctl || exit 0
	# shellcheck disable=SC2086
	$as systemctl -q disable $1 >&2
	exit 0
)

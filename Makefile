# make demo   watch Capriole work on a program that is not ours
# make test   run the tests
#
# Both install with apt-get what a fresh Debian lacks. The rest is for developers.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man

.PHONY: help demo test soak bench bench-peers bench-chart lint stress library install install-library deb static

help:
	@echo 'make demo      watch Capriole work on a program that is not ours (about a minute)'
	@echo 'make test      run the tests'
	@echo 'make soak      run the tests that find defects by chance, for SOAK_SECONDS=1200'
	@echo 'make bench     measure what a hit costs on this machine'
	@echo 'make bench-peers   install the tools that it compares with; without them it skips them'
	@echo 'make bench-chart   the same as bench, with a chart: docs/bench-hit.svg'
	@echo 'make lint      formatting, clippy and documentation, as the tests of a change do'
	@echo 'make stress    record and be killed, for twice STRESS_SECONDS=60, on programs that check themselves'
	@echo 'make library   build libcapriole for programs that probe themselves, to be used from target/library'
	@echo 'make install   put the command, the library, headers, manual pages and the benchmarks into PREFIX=/usr/local'
	@echo '               stripped, with completions for bash, zsh and fish (libraries into LIBDIR=$$PREFIX/lib; everything below DESTDIR, if it is set)'
	@echo 'make deb       build Debian packages into target/deb: capriole, capriole-bench, libcapriole0, libcapriole-dev'
	@echo 'make static    build target/static/capriole, which needs no libraries: for containers and other distributions'

demo:
	@scripts/setup.sh demo
	@cargo build --release -p capriole-cli -p capriole-bench
	@scripts/demo.sh

test:
	@scripts/setup.sh test
	@scripts/test.sh

soak:
	@scripts/setup.sh soak
	@scripts/soak.sh

bench:
	@scripts/setup.sh build
	@cargo run --release -p capriole-bench -- hit

bench-peers:
	@scripts/peers.sh

bench-chart:
	@scripts/setup.sh build
	@cargo run --release -p capriole-bench -- hit --svg docs/bench-hit.svg

lint:
	@scripts/lint.sh

stress:
	@scripts/setup.sh build
	@cargo build --release -p capriole-cli
	@scripts/stress.sh
	@scripts/stress-unhurt.sh

# For use from here: with the header and the command of the source tree.
library:
	@scripts/setup.sh build
	@cargo build --release -p capriole-cli
	@scripts/library.sh target/library "$$(scripts/binary.sh)"
	@scripts/pkgconfig.sh "$(CURDIR)" "$(CURDIR)/target/library" "$(CURDIR)/include" \
		"$(CURDIR)/target/library" "$$(scripts/binary.sh)" >target/library/capriole.pc
	@echo 'libcapriole is in target/library. A program is built and run like this:'
	@echo '  export PKG_CONFIG_PATH=$(CURDIR)/target/library'
	@echo '  cc -o program program.c $$(pkg-config --cflags --libs capriole) -Wl,-rpath,$(CURDIR)/target/library'

install:
	@scripts/setup.sh build
	@cargo build --release -p capriole-cli -p capriole-bench
	@$(INSTALL_LIBRARY)
	@PREFIX="$(PREFIX)" INCLUDEDIR="$(INCLUDEDIR)" MANDIR="$(MANDIR)" DESTDIR="$(DESTDIR)" \
		ALSO=libcapriole scripts/install-command.sh "$$(scripts/binary.sh)" "$$(scripts/binary.sh)-bench"

# Packages of the release build.
deb:
	@scripts/setup.sh build
	@cargo build --release -p capriole-cli -p capriole-bench
	@scripts/deb.sh --binary "$$(scripts/binary.sh)" --bench "$$(scripts/binary.sh)-bench"

static:
	@scripts/setup.sh build
	@scripts/static.sh

# What needs no cargo: the library, its header, its manual pages.
install-library:
	@scripts/setup.sh library
	$(INSTALL_LIBRARY)

INSTALL_LIBRARY = PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" INCLUDEDIR="$(INCLUDEDIR)" MANDIR="$(MANDIR)" \
	DESTDIR="$(DESTDIR)" scripts/install-library.sh

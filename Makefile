# make demo   watch Capriole work on a program that is not ours
# make test   run all tests
#
# Both install with apt-get what a fresh Debian lacks. The rest is for developers.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
PREFIX ?= /usr/local

.PHONY: help demo test bench bench-peers bench-chart lint stress install

help:
	@echo 'make demo      watch Capriole work on a program that is not ours (about a minute)'
	@echo 'make test      run all tests'
	@echo 'make bench     measure what a hit costs on this machine'
	@echo 'make bench-peers   install the tools that it compares with; without them it skips them'
	@echo 'make bench-chart   the same as bench, with a chart: docs/bench-hit.svg'
	@echo 'make lint      formatting, clippy and documentation, as the tests of a change do'
	@echo 'make stress    record and be killed, for twice STRESS_SECONDS=60, on programs that check themselves'
	@echo 'make install   put the command, the benchmarks and the header of markers into PREFIX=/usr/local'

demo:
	@scripts/setup.sh demo
	@cargo build --release -p capriole-cli
	@scripts/demo.sh

test:
	@scripts/setup.sh test
	@scripts/test.sh

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

install:
	@scripts/setup.sh build
	@cargo build --release -p capriole-cli -p capriole-bench
	install -D -m 755 "$$(scripts/binary.sh)" "$(DESTDIR)$(PREFIX)/bin/capriole"
	install -D -m 755 "$$(scripts/binary.sh)-bench" "$(DESTDIR)$(PREFIX)/bin/capriole-bench"
	install -D -m 644 include/capriole/marker.h "$(DESTDIR)$(PREFIX)/include/capriole/marker.h"

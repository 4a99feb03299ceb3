# Everything this project does, by name. `make demo` and `make test` need Debian 12, git, make and Rust, and say what else
# they install.
.PHONY: help build install uninstall demo check test lint judges fuzz bench
PREFIX ?= /usr/local
BINARIES = zpool zfs zdb zillad
help:
	@echo 'make demo    build a release, make a pool, fill it, scrub it, carry it over, compare every file'
	@echo 'make install PREFIX=DIR: the program, its links and the manual (DESTDIR is heeded); make uninstall'
	@echo 'make check   the quick rings: formatting, house style, the tests inside the crates'
	@echo 'make test    every test of the project'
	@echo 'make lint    formatting, clippy, house style, licenses'
	@echo 'make judges  the long proofs: 200 kills, pjdfstest, fsx, the whole corpus, OpenZFS in a virtual machine'
	@echo 'make fuzz    every fuzz target for SECONDS (default 60) each'
	@echo 'make bench   speed, beside the peers'
build:
	cargo build --release
# Stands beside Debian's zfsutils: another prefix, and no file of its names in /usr/sbin.
install: build
	install -D -m 755 -s target/release/zilla $(DESTDIR)$(PREFIX)/bin/zilla
	for name in $(BINARIES); do ln -sf zilla $(DESTDIR)$(PREFIX)/bin/$$name || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/share/man/man7 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 644 docs/man/*.7 $(DESTDIR)$(PREFIX)/share/man/man7
	install -m 644 docs/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8
uninstall:
	for name in zilla $(BINARIES); do rm -f $(DESTDIR)$(PREFIX)/bin/$$name || exit 1; done
	for page in docs/man/*; do rm -f $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$${page##*/} || exit 1; done
demo:
	@scripts/demo.sh
check:
	@scripts/check.sh
test:
	@scripts/test.sh
lint:
	@scripts/lint.sh
judges:
	@scripts/judges.sh
fuzz:
	cargo xtask fuzz --seconds $(or $(SECONDS),60)
bench:
	cargo xtask bench

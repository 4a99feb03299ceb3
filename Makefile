# Everything this project does, by name. `make demo` and `make test` need Debian 12, git, make and Rust, and say what else
# they install.
.PHONY: help build install install-files uninstall deb rpm tarball demo check test lint judges fuzz bench
PREFIX ?= /usr/local
BINARIES = zpool zfs zdb zstream zinject zgenhostid zillad
# The program that is installed, and where its parts go; packages name other folders.
BUILT ?= target/release/zilla
BINDIR = $(PREFIX)/bin
MANDIR = $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
USERUNITDIR ?= $(PREFIX)/lib/systemd/user
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
MONITORDIR = $(PREFIX)/share/zilla/monitoring
# Where the program looks: below the folder that BINDIR is in.
COMPATDIR = $(PREFIX)/share/zilla/compatibility.d
EXAMPLEDIR = $(PREFIX)/share/zilla/examples
COMPLETE = crates/zilla-cli/src/complete
UNITS = packaging/systemd/*.service packaging/systemd/*.socket packaging/systemd/*.timer
USERUNITS = packaging/systemd/user/*.service packaging/systemd/user/*.socket
help:
	@echo 'make demo    build a release, make a pool, fill it, scrub it, carry it over, compare every file'
	@echo 'make install PREFIX=DIR: program, manual, completions, systemd units (DESTDIR is heeded); make uninstall'
	@echo 'make deb | rpm | tarball: packages, in target/packages'
	@echo 'make check   the quick rings: formatting, house style, the tests inside the crates'
	@echo 'make test    every test of the project but the long proofs'
	@echo 'make lint    formatting, clippy, house style, licenses'
	@echo 'make judges  the long proofs: 200 kills, pjdfstest, fsx, planted bugs, the whole corpus, OpenZFS in a virtual machine'
	@echo 'make fuzz    every fuzz target for SECONDS (default 60) each'
	@echo 'make bench   speed, beside the peers'
build:
	cargo build --release
# Stands beside Debian's zfsutils: another prefix, and no file of its names in /usr/sbin.
install: build install-files
install-files:
	install -D -m 755 -s $(BUILT) $(DESTDIR)$(BINDIR)/zilla
	for name in $(BINARIES); do ln -sf zilla $(DESTDIR)$(BINDIR)/$$name || exit 1; done
	install -d $(DESTDIR)$(MANDIR)/man7 $(DESTDIR)$(MANDIR)/man8
	install -m 644 docs/man/*.7 $(DESTDIR)$(MANDIR)/man7
	install -m 644 docs/man/*.8 $(DESTDIR)$(MANDIR)/man8
	install -D -m 644 $(COMPLETE)/zilla.bash $(DESTDIR)$(BASHDIR)/zilla.bash
	for name in zpool zfs; do ln -sf zilla.bash $(DESTDIR)$(BASHDIR)/$$name.bash || exit 1; done
	install -D -m 644 $(COMPLETE)/zilla.zsh $(DESTDIR)$(ZSHDIR)/_zilla
	install -D -m 644 $(COMPLETE)/zilla.fish $(DESTDIR)$(FISHDIR)/zilla.fish
	for name in zpool zfs; do ln -sf zilla.fish $(DESTDIR)$(FISHDIR)/$$name.fish || exit 1; done
	install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(USERUNITDIR) $(DESTDIR)$(MONITORDIR)
	install -m 644 packaging/monitoring/* $(DESTDIR)$(MONITORDIR)
	install -d $(DESTDIR)$(COMPATDIR) $(DESTDIR)$(EXAMPLEDIR)
	install -m 644 packaging/compatibility.d/* $(DESTDIR)$(COMPATDIR)
	install -m 644 packaging/examples/* $(DESTDIR)$(EXAMPLEDIR)
	for unit in $(UNITS); do sed 's,@BINDIR@,$(BINDIR),' $$unit >$(DESTDIR)$(UNITDIR)/$${unit##*/} || exit 1; done
	for unit in $(USERUNITS); do sed 's,@BINDIR@,$(BINDIR),' $$unit >$(DESTDIR)$(USERUNITDIR)/$${unit##*/} || exit 1; done
uninstall:
	for name in zilla $(BINARIES); do rm -f $(DESTDIR)$(BINDIR)/$$name || exit 1; done
	for page in docs/man/*; do rm -f $(DESTDIR)$(MANDIR)/man$${page##*.}/$${page##*/} || exit 1; done
	for name in zilla zpool zfs; do rm -f $(DESTDIR)$(BASHDIR)/$$name.bash $(DESTDIR)$(FISHDIR)/$$name.fish || exit 1; done
	rm -f $(DESTDIR)$(ZSHDIR)/_zilla
	for unit in $(UNITS); do rm -f $(DESTDIR)$(UNITDIR)/$${unit##*/} || exit 1; done
	for unit in $(USERUNITS); do rm -f $(DESTDIR)$(USERUNITDIR)/$${unit##*/} || exit 1; done
	rm -rf $(DESTDIR)$(PREFIX)/share/zilla
deb rpm tarball: build
	packaging/package $@
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

# Everything this project does, by name. `make demo` and `make test` need Debian 12, git, make and Rust, and say what else
# they install.
.PHONY: help build demo test lint judges fuzz bench
help:
	@echo 'make demo    build a release, make a pool, fill it, scrub it, carry it over, compare every file'
	@echo 'make test    every test of the project'
	@echo 'make lint    formatting, clippy, house style, licenses'
	@echo 'make judges  the long proofs: 200 kills, pjdfstest, fsx, the whole corpus, OpenZFS in a virtual machine'
	@echo 'make fuzz    every fuzz target for SECONDS (default 60) each'
	@echo 'make bench   speed, beside the peers'
build:
	cargo build --release
demo:
	@scripts/demo.sh
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

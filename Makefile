# Build, test and install TwinMQ. `make run` starts a pair to try, `make test` runs all tests.
#
#   PREFIX=/usr/local DESTDIR=     where `make install` puts things
#   ARGS=                          options for tools/run-pair, as in `make run ARGS=--two`
#   QUICK=1                        a short `make interop` or `make conformance`
#   PAIRS="twinmq:twinmq ..."      master:slave of each conformance run
#   TWINMQ_SHARED=../shared        where the conformance cases and golden files are

PREFIX  = /usr/local
DESTDIR =
ARGS    =
CARGO   = cargo
INSTALL = install

TARGET_DIR = $${CARGO_TARGET_DIR:-target}
BINARY     = $(TARGET_DIR)/release/twinmq
MUSL       = x86_64-unknown-linux-musl
PAGES      = $(wildcard man/*.[1-9])

.PHONY: all release run test check lint interop conformance soak static man install uninstall clean

all: release

release:
	$(CARGO) build --release

run: release
	TWINMQ=$(BINARY) tools/run-pair $(ARGS)

test:
	$(CARGO) test

# What a change has to pass.
check: lint man test

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings

man:
	tools/lint-man $(PAGES)

interop: release
	TWINMQ=$(BINARY) QUICK=$(QUICK) tools/interop/run

conformance: release
	TWINMQ=$(BINARY) QUICK=$(QUICK) tools/conformance $(PAIRS)

# The tests that are too long for every change.
soak:
	$(CARGO) test --release -- --ignored

static:
	if ! rustc --print target-libdir --target $(MUSL) | xargs test -d && command -v rustup >/dev/null; \
	then rustup target add $(MUSL); fi
	$(CARGO) build --release --target $(MUSL)
	@ls -l $(TARGET_DIR)/$(MUSL)/release/twinmq

install: release
	$(INSTALL) -d "$(DESTDIR)$(PREFIX)/bin"
	$(INSTALL) -m 755 $(BINARY) "$(DESTDIR)$(PREFIX)/bin/twinmq"
	for page in $(PAGES); do \
	  dir="$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}"; \
	  $(INSTALL) -d "$$dir" && $(INSTALL) -m 644 "$$page" "$$dir" || exit 1; \
	done

uninstall:
	rm -f "$(DESTDIR)$(PREFIX)/bin/twinmq"
	for page in $(PAGES); do \
	  rm -f "$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$${page##*/}" || exit 1; \
	done

# Stores that `make run` left in ./run stay: they are yours.
clean:
	$(CARGO) clean

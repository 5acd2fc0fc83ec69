# Two commands are enough: `make demo` shows what respool does, `make test` proves that it works.
# `make help` lists the others.

.DEFAULT_GOAL := help
# The steps of `make test` run in their order, whatever -j says: most of them measure or need the cores.
.NOTPARALLEL:

SHELL := /bin/sh
# Where rustup puts cargo, when the shell does not look there.
export PATH := $(PATH):$(HOME)/.cargo/bin
# The recipes run what they built by its path.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Tests run what ships, built in a fraction of the time (see Cargo.toml).
QUICK := --profile quick --locked
VENV := $(or $(RESPOOL_VENV),.venv)
# The Rust whose warnings are errors. Every new one brings lints that no code here has met: with another
# Rust they are shown and fail nothing, or `make test` would break by itself every few weeks.
LINTED_WITH := 1.95
WARNINGS := $(if $(findstring rustc $(LINTED_WITH).,$(shell PATH="$(PATH)" rustc --version 2>/dev/null)),-D warnings)

# What respool makes one server of.
SEVERAL := sentinel sharded cluster

.PHONY: help
help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- to see it ---

.PHONY: demo
demo: ready-build ## One minute of the experiment: a private Redis, a respool before it, a table, a report
	cargo build --release --locked
	$(TARGET)/release/respool-lab eight --quick --out lab-out/demo

.PHONY: bench
bench: ready-peers ## The whole experiment at length, with peers and the floor
	cargo build --release --locked
	$(TARGET)/release/respool-lab eight --all --out lab-out/bench

.PHONY: build
build: ready-build ## The programs as they ship: target/release/respool and respool-lab
	cargo build --release --locked

.PHONY: speed
speed: ready-build ## Micro-benchmarks of a request's way, without sockets; ONLY=WORD for some
	cargo bench --package respool-engine --bench speed --locked -- $(ONLY)

.PHONY: instructions
instructions: ready-counts ## Its instructions, against those counted last; ACCEPT=1 writes down the new counts
	cargo bench --package respool-engine --bench instructions --locked -- $(if $(ACCEPT),--accept)

# --- to test it ---

.PHONY: test
test: format lint docs rust generated python conformance-short fuzz-smoke lab-smoke ## All that CI runs
	@echo "make test: every step passed"

.PHONY: format
format: ready-test ## rustfmt agrees
	cargo fmt --all --check

.PHONY: lint
lint: ready-test ## clippy has nothing to say
	@$(if $(WARNINGS),,echo "lint: warnings are only shown: this is $$(rustc --version), they are errors with $(LINTED_WITH)")
	cargo clippy --workspace --all-targets --locked -- $(WARNINGS)

.PHONY: docs
docs: ready-test ## The documentation of every crate builds without a warning
	RUSTDOCFLAGS="$(WARNINGS)" cargo doc --workspace --no-deps --locked

# A test that cannot try something fails, unless that is named here; Envoy comes with `make bench` alone.
.PHONY: rust
rust: ready-test ## Unit and property tests; respool before real servers of every version at hand
	RESPOOL_TESTS_WITHOUT=$(RESPOOL_TESTS_WITHOUT),envoy cargo test --workspace $(QUICK) --no-fail-fast

.PHONY: generated
generated: ready-test ## What is generated from a table and checked in is what the table says now
	cargo build --workspace --bins $(QUICK)
	$(TARGET)/quick/respool-lab commands --check
	$(TARGET)/quick/respool docs --check
	$(VENV)/bin/python -B tests/guarantees.py

.PHONY: python
python: ready-test ## redis-py, as it is, through respool
	cargo build -p respool --bins $(QUICK)
	$(VENV)/bin/python -B -m unittest discover --verbose --start-directory tests/redis_py

# Not a part of `make test`: some attacks need a minute until what should come has come.
.PHONY: hostile
hostile: ready-test ## Hostile clients, hostile servers, careless operators; SERVERS="redis-7.0 valkey-9.1" and ONLY=WORD for some
	cargo build -p respool --bins $(QUICK)
	HOSTILE_SERVERS="$(or $(SERVERS),redis-7.0 redis-8.2 valkey-9.1)" $(VENV)/bin/python -B -m unittest discover --verbose \
	    --start-directory tests/hostile $(if $(ONLY),-k '$(ONLY)')

.PHONY: fuzz-smoke
fuzz-smoke: ready-test ## The fuzz targets, a few seconds each
	fuzz/run --seconds 15

.PHONY: fuzz
fuzz: ready-test ## The fuzz targets, ten minutes each; SECONDS_EACH=N for another time
	fuzz/run --seconds $(or $(SECONDS_EACH),600)

.PHONY: conformance-short
conformance-short: ready-test ## A part of other people's test suites, directly and through respool
	cargo build --workspace --bins $(QUICK)
	$(VENV)/bin/python -B -m unittest discover --start-directory conformance/tests
	conformance/run --profile short --out conformance/.cache/short
	for kind in $(SEVERAL); do conformance/run --profile several --kind $$kind --out conformance/.cache/$$kind || exit 1; done

.PHONY: conformance
conformance: ready-test ## Other people's test suites, directly and through respool, compared test by test
	cargo build -p respool --bins $(QUICK)
	$(VENV)/bin/python -B -m unittest discover --start-directory conformance/tests
	conformance/run --profile full $(if $(SERVER),--server $(SERVER)) --out $(or $(OUT),conformance/.cache/out)
	$(MAKE) applications

.PHONY: applications
applications: ready-test ## Job workers and clients lose their server, directly and through respool; needs Go, npm and Maven. ONLY=NAME for one
	cargo build --workspace --bins $(QUICK)
	conformance/run --profile applications $(if $(ONLY),--suite $(ONLY)) $(if $(SERVER),--server $(SERVER)) --out conformance/.cache/applications-out

.PHONY: conformance-several
conformance-several: ready-test ## The same before a Cluster, a primary that Sentinels watch, and sharded servers; SERVER=valkey-9.1 for other ones
	cargo build --workspace --bins $(QUICK)
	for kind in $(SEVERAL); do \
	    conformance/run --profile full $(if $(SERVER),--server $(SERVER)) --kind $$kind --out $(or $(OUT),conformance/.cache/out)-$$kind || exit 1; \
	done

# Not a part of `make test`: it takes Go, Node.js and a JDK with Maven, and downloads the libraries.
.PHONY: retries
retries: ready-test ## What client libraries do with errors and closed connections, as docs/retries.md
	conformance/retries/run --prepare

.PHONY: histories
histories: ready-test ## Ten million requests of concurrent clients before each server, and several servers in trouble: could one server have given these answers?
	cargo build --workspace --bins --release
	@for server in $(or $(SERVERS),redis-7.0 redis-8.2 valkey-9.1); do \
	    $(TARGET)/release/respool-lab histories --requests 5000000 --server $$server || exit 1; \
	    $(TARGET)/release/respool-lab histories --requests 5000000 --keys 6 --server $$server \
	        --respool-arg --threads=3 --cut-every 1.5 || exit 1; \
	done
	@for what in "cluster nothing" "cluster cuts" "cluster moves" "cluster members" "cluster command" "cluster restarts" \
	    "cluster kill" "cluster freeze" "sentinel cuts" "sentinel kill" "sentinel freeze" "sharded cuts"; do \
	    set -- $$what; echo "histories: $$what"; \
	    for server in $(or $(SERVERS),redis-7.0 redis-8.2 valkey-9.1); do \
	        $(TARGET)/release/respool-lab histories --kind $$1 --trouble $$2 --keys 12 --server $$server \
	            --respool-arg --threads=3 || exit 1; \
	    done; \
	done

.PHONY: lab-smoke
lab-smoke: ready-test ## The experiment at its smallest writes its files and they hold what they should
	cargo build --workspace --bins $(QUICK)
	$(VENV)/bin/python -B tests/lab_smoke.py $(TARGET)/quick/respool-lab

# --- what each needs on the machine ---

.PHONY: ready-build ready-counts ready-test ready-peers
ready-build ready-counts ready-test ready-peers:
	@tools/setup.sh $(@:ready-%=%)

# `make demo` shows respool, and `make test` proves that it works. `make help` lists all targets.

.DEFAULT_GOAL := help
# The steps of `make test` run in order even with -j: most of them measure, or use all cores.
.NOTPARALLEL:

SHELL := /bin/sh
# The folder of rustup's cargo, which may not be in the shell's PATH.
export PATH := $(PATH):$(HOME)/.cargo/bin
# The recipes run the programs in this folder.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Tests run the shipped code from a build that takes a fraction of the time (see Cargo.toml). Clippy
# and rustdoc take this profile, too: all three share the C code of aws-lc.
QUICK := --profile quick --locked
VENV := $(or $(RESPOOL_VENV),.venv)
JAVA_PEERS := $(TARGET)/java-peers
# Warnings of this Rust are errors. Every new Rust has new lints, which would break `make test`
# every few weeks. So warnings of another Rust are only shown.
LINTED_WITH := 1.95
WARNINGS := $(if $(findstring rustc $(LINTED_WITH).,$(shell PATH="$(PATH)" rustc --version 2>/dev/null)),-D warnings)

# Topologies of several servers that respool shows as one server.
SEVERAL := sentinel sharded cluster

.PHONY: help
help: ## Print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- try it ---

.PHONY: demo
demo: ready-build ## Run the experiment for a minute with a private Redis and respool: a table and a report
	cargo build --release --locked
	$(TARGET)/release/respool-lab eight --quick --out lab-out/demo

.PHONY: bench
bench: ready-peers ## Run the whole experiment, with other proxies and a bare echo server
	cargo build --release --locked
	$(TARGET)/release/respool-lab eight --all --out lab-out/bench

.PHONY: build
build: ready-build ## Build the programs as they ship: target/release/respool and respool-lab
	cargo build --release --locked

.PHONY: speed
speed: ready-build ## Run micro-benchmarks of the engine without sockets; ONLY=WORD for some
	cargo bench --package respool-engine --bench speed --locked -- $(ONLY)

.PHONY: instructions
instructions: ready-counts ## Compare the instructions of the engine with the recorded counts; ACCEPT=1 records new ones
	cargo bench --package respool-engine --bench instructions --locked -- $(if $(ACCEPT),--accept)

# --- test it ---

.PHONY: test
test: format lint docs tidy rust generated python python-binding java conformance-short fuzz-smoke lab-smoke ## Run everything that CI runs
	@echo "make test: every step passed"

# Every step takes its programs from this one build. A build of one package selects fewer features
# of the dependencies, and compiles them and the crates above them once more.
.PHONY: programs
programs: ready-test ## Build the programs and the test programs with assertions: target/quick/respool and respool-lab
	cargo test --workspace $(QUICK) --no-run

.PHONY: format
format: ready-test ## Check the format of the code
	cargo fmt --all --check

.PHONY: tidy
tidy: programs ## Check imports between folders, line widths, type names, long functions, commit subjects
	$(TARGET)/quick/xtask tidy

.PHONY: lint
lint: ready-test ## Run clippy
	@$(if $(WARNINGS),,echo "lint: warnings of $$(rustc --version) are only shown; with Rust $(LINTED_WITH) they are errors")
	cargo clippy --workspace --all-targets $(QUICK) -- $(WARNINGS)
# The fuzz targets are a workspace of their own. Clippy links nothing, so libFuzzer need not be
# compiled: its build script takes any path.
	CUSTOM_LIBFUZZER_PATH=target/none.a cargo clippy --manifest-path fuzz/Cargo.toml --bins --locked \
	  --target-dir $${CARGO_TARGET_DIR:-target} -- $(WARNINGS)

.PHONY: docs
docs: ready-test ## Build the documentation of all crates without warnings
	RUSTDOCFLAGS="$(WARNINGS)" cargo doc --workspace --no-deps $(QUICK)

# A test fails if a program that it needs is missing, unless the program is named here. Envoy is
# named because only `make bench` installs it. Prometheus is named because its package is large and
# starts a service: put `prometheus` and `promtool` into PATH, and their tests run.
#
# Most tests of the real program wait for a server, a timeout or a failover, and use little CPU.
# So one more of them runs than there are cores. Twice as many delay each other by seconds. A test
# that fails runs once more, alone; the output names a test that passes then (see tests/rust.py).
.PHONY: rust
rust: ready-test ## Run unit and property tests, and respool before real servers of every version at hand
	RESPOOL_TESTS_WITHOUT=$(RESPOOL_TESTS_WITHOUT),envoy,prometheus RUST_TEST_THREADS=$(or $(RUST_TEST_THREADS),$$(($$(nproc) + 1))) \
	    $(VENV)/bin/python -B tests/rust.py --workspace $(QUICK) --no-fail-fast

.PHONY: generated
generated: programs ## Check that generated files in the repository are up to date
	$(TARGET)/quick/xtask commands --check
	$(TARGET)/quick/xtask man --check
	$(TARGET)/quick/xtask completions --check
	$(TARGET)/quick/xtask header --check
	$(TARGET)/quick/xtask reference --check
	$(VENV)/bin/python -B tests/guarantees.py

.PHONY: python
python: programs ## Run redis-py through respool
	$(VENV)/bin/python -B -m unittest discover --verbose --start-directory tests/redis_py

# maturin selects other features of the dependencies than `programs` does. So the first build takes
# a minute or two, and later ones seconds.
.PHONY: python-library
python-library: ready-test ## Build the Python binding and install it into the tests' environment
	cd bindings/python && VIRTUAL_ENV=$(abspath $(VENV)) CARGO_TARGET_DIR=$(abspath $(TARGET)) \
	    $(abspath $(VENV))/bin/maturin develop --quiet $(QUICK)

.PHONY: python-binding
python-binding: python-library ## Run the tests of the Python binding before real servers
	$(VENV)/bin/python -B -m unittest discover --verbose --start-directory bindings/python/tests

# The library of the jar is without the debug information of the tests: that is 49 MB.
.PHONY: java-library
java-library: programs ## Put the native library into the folder of the Java binding
	mkdir -p bindings/java/target/libraries/linux-$$(uname -m)
	objcopy --strip-debug $(TARGET)/quick/deps/librespool.so \
	    bindings/java/target/libraries/linux-$$(uname -m)/librespool.so

.PHONY: java
java: java-library ## Build the Java binding, and run its tests and those of its sample with Spring; JAVA=/usr/lib/jvm/NAME for another Java than that of Maven
	cd bindings/java && pom=with-samples.xml && \
	    if ! mvn -q -B -f spring-sample validate; then \
	        echo "java: Maven cannot fetch Spring, so its sample is not tried"; \
	        [ -z "$$CI" ] || exit 1; \
	        pom=pom.xml; \
	    fi && \
	    mvn -q -B -f $$pom verify $(if $(JAVA),-Dtest.jvm=$(JAVA)/bin/java -Djvm=$(JAVA)/bin/java)

# `make test` does not run this: it clones Jedis, and compiles it.
.PHONY: java-jedis
java-jedis: java-library ## Run Jedis' own tests with plain Jedis and with the Java binding, and compare test by test
	cd bindings/java && mvn -q -B package -DskipTests
	$(VENV)/bin/python -B -m unittest discover --start-directory conformance/tests
	conformance/run --profile jedis --out $(or $(OUT),conformance/.cache/jedis-out)

# `make test` does not run this: some attacks take a minute to show their effect.
.PHONY: hostile
hostile: ready-test ## Try hostile clients, hostile servers and careless operators; SERVERS="redis-7.0 valkey-9.1" and ONLY=WORD for some
	cargo build -p respool --bins $(QUICK)
	HOSTILE_SERVERS="$(or $(SERVERS),redis-7.0 redis-8.2 valkey-9.1)" $(VENV)/bin/python -B -m unittest discover --verbose \
	    --start-directory tests/hostile $(if $(ONLY),-k '$(ONLY)')

.PHONY: fuzz-smoke
fuzz-smoke: ready-test ## Run the fuzz targets for a few seconds each
	fuzz/run --seconds 5

.PHONY: fuzz
fuzz: ready-test ## Run the fuzz targets for ten minutes each; SECONDS_EACH=N for another time
	fuzz/run --seconds $(or $(SECONDS_EACH),600)

.PHONY: conformance-short
conformance-short: programs python-library ## Run a part of other projects' test suites, directly and through respool
	$(VENV)/bin/python -B -m unittest discover --start-directory conformance/tests
	conformance/run --profile short --out conformance/.cache/short
	for kind in $(SEVERAL); do conformance/run --profile several --kind $$kind --out conformance/.cache/$$kind || exit 1; done

.PHONY: conformance
conformance: ready-test python-library ## Run other projects' test suites, directly and through respool, and compare test by test
	cargo build -p respool --bins $(QUICK)
	$(VENV)/bin/python -B -m unittest discover --start-directory conformance/tests
	conformance/run --profile full $(if $(SERVER),--server $(SERVER)) --out $(or $(OUT),conformance/.cache/out)
	$(MAKE) applications

.PHONY: applications
applications: ready-test ## Run job workers and clients that lose their server, directly and through respool; needs Go, npm and Maven; ONLY=NAME for one
	cargo build --workspace --bins $(QUICK)
	conformance/run --profile applications $(if $(ONLY),--suite $(ONLY)) $(if $(SERVER),--server $(SERVER)) --out conformance/.cache/applications-out

.PHONY: conformance-several
conformance-several: ready-test ## Run these suites before a Cluster, a primary with Sentinels, and sharded servers; SERVER=valkey-9.1 for another version
	cargo build --workspace --bins $(QUICK)
	for kind in $(SEVERAL); do \
	    conformance/run --profile full $(if $(SERVER),--server $(SERVER)) --kind $$kind --out $(or $(OUT),conformance/.cache/out)-$$kind || exit 1; \
	done

# `make test` does not run this: it needs Go, Node.js and a JDK with Maven, and downloads the
# libraries.
.PHONY: retries
retries: ready-test ## Show how client libraries handle errors and closed connections, as in docs/retries.md
	conformance/retries/run --prepare

.PHONY: histories
histories: ready-test ## Check the replies to ten million concurrent requests, also during failures, for linearizability
	cargo build --workspace --bins --release
	@for server in $(or $(SERVERS),redis-7.0 redis-8.2 valkey-9.1); do \
	    $(TARGET)/release/respool-lab histories --requests 5000000 --server $$server || exit 1; \
	    $(TARGET)/release/respool-lab histories --requests 5000000 --keys 6 --server $$server \
	        --respool-arg --threads=3 --cut-every 1.5 || exit 1; \
	done
	@for trouble in "cluster nothing" "cluster cuts" "cluster moves" "cluster members" "cluster command" "cluster restarts" \
	    "cluster kill" "cluster freeze" "sentinel cuts" "sentinel kill" "sentinel freeze" "sharded cuts"; do \
	    set -- $$trouble; echo "histories: $$trouble"; \
	    for server in $(or $(SERVERS),redis-7.0 redis-8.2 valkey-9.1); do \
	        $(TARGET)/release/respool-lab histories --kind $$1 --trouble $$2 --keys 12 --server $$server \
	            --respool-arg --threads=3 || exit 1; \
	    done; \
	done

.PHONY: client-histories
client-histories: ready-test ## Check the client as `make histories` checks the proxy: sessions and calls, with calls that end their wait
	cargo build --workspace --bins --release
	@for server in $(or $(SERVERS),redis-7.0 redis-8.2 valkey-9.1); do for calls in false true; do \
	    client="$(TARGET)/release/respool-lab histories --respool $(TARGET)/release/respool-client-bridge --server $$server --respool-arg --calls=$$calls"; \
	    $$client --requests 1000000 || exit 1; \
	    $$client --requests 500000 --keys 6 --cut-every 1.5 --respool-arg --give-up-one-in=10 || exit 1; \
	    for trouble in "cluster moves" "cluster kill" "cluster freeze" "sentinel kill" "sentinel freeze" "sharded cuts"; do \
	        set -- $$trouble; echo "client-histories: $$trouble"; \
	        $$client --kind $$1 --trouble $$2 --keys 12 || exit 1; \
	    done; \
	done; done
	$(TARGET)/release/respool-lab differ --respool $(TARGET)/release/respool-client-bridge --cases 100 --refusals --patience 15

# The first build takes minutes: the native library is optimised as in a release.
.PHONY: java-peers
java-peers: ready-test ## Build the jar of the libraries for Java that `respool-lab client` runs
	cargo build --package respool-ffi --profile client --locked
	mkdir -p $(JAVA_PEERS)/libraries/linux-$$(uname -m)
	objcopy --strip-debug $(TARGET)/client/librespool.so \
	    $(JAVA_PEERS)/libraries/linux-$$(uname -m)/librespool.so
	mvn -q -B package --file crates/lab/src/clients/java/pom.xml -Dpeers.folder=$(abspath $(JAVA_PEERS))
	@echo "java-peers: respool-lab client --java-peers $(JAVA_PEERS)/java-peers.jar"

.PHONY: lab-smoke
lab-smoke: programs python-library ## Run the smallest experiments: the files of one, and all client libraries that are installed
	$(VENV)/bin/python -B tests/lab_smoke.py $(TARGET)/quick/respool-lab
	$(TARGET)/quick/respool-lab client --quick --python $(VENV)/bin/python \
	    --java-peers $(JAVA_PEERS)/java-peers.jar

# --- prepare the machine ---

.PHONY: ready-build ready-counts ready-test ready-peers
ready-build ready-counts ready-test ready-peers:
	@tools/setup.sh $(@:ready-%=%)

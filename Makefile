# `make test` is all that a change must pass; `.ci/run` calls it. `verify` never writes to the source, `fix` does.
# Commands name the whole workspace, so that they share one resolution of features and build dependencies once.

STAGE := scripts/stage
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# A stage is a target of its own. scripts/stages runs all of a list even if one fails, and names those that did.
VERIFY := format clippy tidy doc licences msrv deploy book
SUITE := build tests doctests python go typescript surface snippets dashboard

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help check test test-nisshi deps verify suite $(VERIFY) $(SUITE) quick fix e2e storm fuzz mutants
.PHONY: dist e2e-containers test-deb reference
.PHONY: hostile model sim soak chaos power-loss bench bench-peers bench-claims bench-partitions bench-tables

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

check: ## before each commit: format, lints, tidy, and the tests that need no other server
	@scripts/stages format clippy tidy quick

test: deps ## everything that must pass: dependencies, verify, the whole suite
	@scripts/stages $(VERIFY) $(SUITE)

deps: ## install what the tests need, or say what is missing
	@$(STAGE) deps scripts/install-test-deps

verify: ## format, lints, tidy, documentation, licences, minimum Rust; writes nothing to the source
	@scripts/stages $(VERIFY)

format:
	@$(STAGE) format cargo fmt --all --check

clippy:
	@$(STAGE) clippy cargo clippy --workspace --all-targets -- -D warnings

# The one package that is built alone: it has no dependencies, so nothing is built twice.
tidy: ## the rules of style, which build in seconds
	@$(STAGE) tidy cargo test --package solehold-tidy

doc:
	@$(STAGE) doc env RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --workspace

licences:
	@$(STAGE) licences scripts/check-licences

msrv:
	@$(STAGE) msrv scripts/check-msrv

deploy: ## the Helm chart, its manifests and the compose files, without a cluster
	@$(STAGE) deploy scripts/check-deploy

book: ## the documents as a book, into target/book: links, anchors and the search checked, nothing loaded from elsewhere
	@$(STAGE) book scripts/check-book

# Servers that tests start keep their data in memory where there is such a folder. Many tests are about answers that
# come within a second, and a busy disk takes longer to sync.
IN_MEMORY := $(if $(wildcard /dev/shm/.),TMPDIR=/dev/shm)

suite: ## build, then run every test
	@scripts/stages $(SUITE)

# Everything that tests run is built by this one command: another selection of packages or targets, as in
# `cargo build --bins`, would resolve other features, and build the dependencies again.
build:
	@$(STAGE) build cargo test --workspace --no-run

# Tests run in parallel. nextest does so across crates too, but knows no documentation tests. Most of them wait for
# something half of their time, so there are more of them than cores.
ifeq ($(NEXTEST),yes)
tests:
	@$(STAGE) tests env $(IN_MEMORY) cargo nextest run --workspace --no-fail-fast \
		--test-threads $$(($$(nproc) * 3 / 2))

doctests:
	@$(STAGE) doctests cargo test --workspace --doc

# .config/nextest.toml has the selection. Properties try fewer cases, since they take most of the time. Most of the
# others wait for something, so there are more of them than cores.
quick:
	@$(STAGE) quick env $(IN_MEMORY) PROPTEST_CASES=32 cargo nextest run --workspace --no-fail-fast --profile quick \
		--test-threads $$(($$(nproc) * 2))
else
tests:
	@$(STAGE) tests env $(IN_MEMORY) cargo test --workspace --no-fail-fast

# `cargo test` has run them already.
doctests:

# Without nextest there is no selection by name: the unit tests alone.
quick:
	@$(STAGE) quick env $(IN_MEMORY) cargo test --workspace --no-fail-fast --lib --bins
endif

python: ## the tests of the Python client, against the server that was built last
	@$(STAGE) python clients/python/test

go: ## the tests of the Go client, against the server that was built last
	@$(STAGE) go clients/go/test

typescript: ## types and tests of the TypeScript client, against the server that was built last
	@$(STAGE) typescript clients/typescript/test

surface: ## every route of the server that was built last, against its own description
	@$(STAGE) surface scripts/check-surface

snippets: ## the commands of the documents, run as they stand there by the server that was built last
	@$(STAGE) snippets scripts/check-snippets

dashboard: ## the dashboard of the server that was built last, in Chromium; pictures go to target/dashboard-screenshots
	@$(STAGE) dashboard scripts/check-dashboard

# One test at a time: several write parts of one page.
reference: ## write the pages that are made from the code: docs/api.md, docs/openapi.json, docs/reference
	SOLEHOLD_UPDATE_GOLDEN=1 cargo test --workspace -- the_reference_ --test-threads 1

fuzz: ## every parser of foreign input for a minute, with libFuzzer; FUZZ_SECONDS=N, TARGETS="mqtt_topic yaml"
	@$(STAGE) fuzz scripts/fuzz $(TARGETS)

fix: ## format, and apply what clippy can repair
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# `make test` runs the same tests with less load.
e2e: ## one example under full load: EXAMPLE=gateway, gateway-go, reconciler, pipeline, tracker or orchestrator
	@test -n "$(EXAMPLE)" && test -d "examples/$(EXAMPLE)" || \
		{ echo "name an example: make e2e EXAMPLE=gateway (or $(patsubst examples/%/README.md,%,$(wildcard examples/*/README.md)))" >&2; exit 2; }
	@$(MAKE) --no-print-directory build
	@$(STAGE) e2e-$(EXAMPLE) env SOLEHOLD_E2E=full cargo test --workspace --test $(EXAMPLE:%-go=%)_e2e -- \
		$(if $(filter gateway,$(EXAMPLE)),--skip in_go)$(if $(filter gateway-go,$(EXAMPLE)),in_go) --nocapture

# As root, on Debian: it installs podman.
e2e-containers: ## images and compose files, run with podman: containers are killed, and others take over
	@$(MAKE) --no-print-directory build
	@$(STAGE) e2e-containers scripts/e2e-containers $(EXAMPLE)

storm: ## five minutes of faults over two servers and four agents; SOLEHOLD_STORM_SEED=N repeats the choices of a run
	@$(MAKE) --no-print-directory build
	@$(STAGE) storm env $(IN_MEMORY) SOLEHOLD_E2E=full cargo test --workspace --test storm -- --nocapture

hostile: ## slow, huge and silent clients by the thousand against one server, whose memory stays bounded
	@$(MAKE) --no-print-directory build
	@$(STAGE) hostile env $(IN_MEMORY) SOLEHOLD_E2E=full cargo test --workspace --test hostile -- --nocapture --test-threads 1

# `make test` visits the scopes in which one thing goes wrong.
model: ## every order of messages, crashes and ticks over the real decisions, within bounds: ten minutes
	cargo run --release -p solehold-model -- --together

# `make test` runs 20 seeds of it.
sim: ## the whole system under 2,000 seeds, on a virtual clock; SEEDS=N for more, SEED=N for the story of one
	cargo run --release -p solehold-sim -- $(if $(SEED),--seed $(SEED) --log,--seeds $(or $(SEEDS),2000))

soak: ## the whole system under new seeds, for as long as there is time: SECONDS=N, ten minutes by default
	cargo run --release -p solehold-sim -- --seconds $(or $(SECONDS),600) --seeds 100000000 --first $$(date +%s)000

# `make test` runs a short form of it. Data is in memory where that is possible, so that the table shows faults and not a
# busy disk. `WITH_PEERS=1 make deps` installs Patroni and etcd for it; what needs them is left out without.
# `ARGS="--older $$(scripts/older-solehold REVISION)"` adds a rolling upgrade from that revision and back.
chaos: ## real servers, writers and a gate under every fault, a quarter of an hour; SEED=N, ARGS="--only writer --break gate"
	@$(MAKE) --no-print-directory build
	@folder="$${CARGO_TARGET_DIR:-target}/debug" && $(STAGE) chaos env $(IN_MEMORY) "$$folder/solehold-chaos" \
		--plot "$$folder/chaos.svg" $(if $(SEED),--seed $(SEED)) $(ARGS)

# `make test` runs a short form of it.
power-loss: ## states that a power loss can leave of an embedded store, minutes; SEED=N, ARGS="--recordings FOLDER"
	@$(MAKE) --no-print-directory build
	@folder="$${CARGO_TARGET_DIR:-target}/debug" && $(STAGE) power-loss env $(IN_MEMORY) "$$folder/solehold-chaos" \
		power-loss $(if $(SEED),--seed $(SEED)) $(ARGS)

# The tests of partitions and of the orchestrator, which `make test` runs against Apache Kafka 0.9.
test-nisshi: ## the same tests against nisshi, a broker of today's protocol; builds it first, which takes a while
	@$(MAKE) --no-print-directory build
	@nisshi=$$(scripts/nisshi-for-tests) && $(STAGE) nisshi env SOLEHOLD_TEST_NISSHI="$$nisshi" \
		cargo test --workspace --test partitions --test dispatch --test jobs --test orchestrator_e2e -- --nocapture

dist: ## what is shipped, into target/dist: tarball, Debian package, wheel, npm package, checksums; ARGS="--binary PATH"
	@$(STAGE) dist scripts/dist $(ARGS)

# With `make dist ARGS="--only-deb --binary target/debug/solehold"` before it, it waits for no optimised build.
test-deb: ## the Debian package of target/dist in a clean Debian: install, run, boot, remove, purge; as root, a minute
	@$(STAGE) test-deb scripts/test-deb

bench: ## cycles per second of the embedded engine (solehold-bench --engine URL compares PostgreSQL with hand-written SQL)
	cargo run --release -p solehold-bench -- --embedded

# The servers are processes of their own, on the disk of TMPDIR. A peer that is not installed is left out and named;
# `WITH_PEERS=1 make deps` installs them.
bench-peers: ## ours beside Redis, etcd and hand-written SQL, all durable, in turn; ARGS="--rounds 5 --only embedded,redis"
	cargo build --release --package solehold --package solehold-bench
	folder="$${CARGO_TARGET_DIR:-target}/release" && "$$folder/solehold-bench" peers --plot "$$folder/peers.svg" $(ARGS)

bench-claims: ## row claims beside hand-written SQL, graphile-worker and pg-boss (npm), on one private PostgreSQL
	cargo run --release -p solehold-bench-claims -- compare --peers

bench-partitions: ## messages per second of the partitioned consumer, beside check, work, mark and commit (aiokafka, Redis)
	cargo run --release -p solehold-bench-partitions

# The time is PostgreSQL's, so our side is not optimised. `make test` runs the same over 20,000 rows each.
bench-tables: ## what every query reads over tables of a million rows; fails when one reads 100 times what it returns
	cargo build --workspace --bin tables-bench
	$(IN_MEMORY) "$${CARGO_TARGET_DIR:-target}/debug/tables-bench"

# Two passes, since the examples take a second and the properties many: the second one tries only what the first left
# alive. SHARD=0/8 runs one part of eight, FILES="decide/mod.rs apply.rs" only those files. A mutant whose tests hang is
# listed as a timeout. docs/mutants.md explains what survives. `--cargo-arg` also keeps the build of each mutant to those tests.
MUTANTS := cargo mutants --package solehold-core --jobs 1 --timeout 300 --build-timeout 300 --output target
MUTANTS += $(if $(SHARD),--shard $(SHARD)) $(foreach file,$(FILES),--file 'crates/core/src/$(file)')

mutants: ## break core on purpose and list what no test notices; SHARD=0/8 or FILES=apply.rs for a part of it
	@cargo mutants --version >/dev/null 2>&1 || cargo install cargo-mutants --locked
	$(MUTANTS) --cargo-arg=--test=rules || test $$? -le 3
	PROPTEST_CASES=25 $(MUTANTS) --iterate --cargo-arg=--lib --cargo-arg=--test=properties

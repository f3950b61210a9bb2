# Doorbuster: what a person types. `make` lists it.
# Everything after `setup` works without network once it has run; cargo takes exactly what Cargo.lock names.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench chaos mutants up down

help: ## list these targets
	@sed -nE 's/^([a-z]+):.*## (.*)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what is missing: Debian packages, Kafka, the schema registry
	@compose/native/setup

demo: setup ## build for release, run a whole sale on real servers, prove that nothing was lost or sold twice
	@cargo run --locked --release --package cli -- demo

# A test that hangs ends its program by this limit in seconds (the slowest program took 17 minutes on a slow machine), and is named by then.
BOUNDED = --config 'target."cfg(unix)".runner=["timeout","--foreground","--verbose","--signal=ABRT","1800"]'

test: setup ## build everything and run every test on real servers
	cargo build --workspace --all-targets --locked
	target/debug/devstack exec -- cargo test $(BOUNDED) --workspace --locked

lint: ## formatting and clippy, warnings denied
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

bench: setup ## measure each path beside what its parts can do; ONLY=name,... for some, QUICK=1 to try: docs/PERFORMANCE.md
	cargo build --locked --release --package cli --package bench --bins
	target/release/bench $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

chaos: setup ## break things under a sale for MINUTES (10), drawn from SEED (another one each time), beside OTHER build: docs/CHAOS.md
	cargo build --locked --package cli --package chaos --bins
	target/debug/chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(OTHER),--other $(OTHER))

mutants: setup ## break the code rule by rule and see that a test notices each
	services/chaos/mutants/run

up: setup ## start the servers in .doorbuster and leave them running
	@cargo run --locked --quiet --package cli -- up

down: ## stop the servers that `up` started; their data stays
	@cargo run --locked --quiet --package cli -- down

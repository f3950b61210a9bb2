# Doorbuster: what a person types. `make` lists it.
# Everything after `setup` works without network once it has run; cargo takes exactly what Cargo.lock names.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint up down

help: ## list these targets
	@sed -nE 's/^([a-z]+):.*## (.*)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what is missing: Debian packages, Kafka, the schema registry
	@compose/native/setup

demo: setup ## build for release, run a whole sale on real servers, prove that nothing was lost or sold twice
	@cargo run --locked --release --package cli -- demo

test: setup ## build everything and run every test on real servers
	cargo build --workspace --all-targets --locked
	target/debug/devstack exec -- cargo test --workspace --locked

lint: ## formatting and clippy, warnings denied
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

up: setup ## start the servers in .doorbuster and leave them running
	@cargo run --locked --quiet --package cli -- up

down: ## stop the servers that `up` started; their data stays
	@cargo run --locked --quiet --package cli -- down

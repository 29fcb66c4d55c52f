# What a newcomer types. Everything behind it is Rust: `cargo xtask`.
#
#   make demo      see it work, on data it makes itself
#   make cluster   the same for a cluster of three nodes
#   make test      what must pass before a change lands

export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo cluster bg test test-spark-3.5 wheel fmt fuzz setup

help: ## List the targets.
	@sed -n 's/^\([a-z0-9.-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "make %-14s %s\n", $$1, $$2 }'

demo: ## Build larder and run `larder demo`. ARGS='--help' shows what it takes.
	@scripts/setup
	@test -x target/release/larder || echo 'Compiling larder and the libraries it uses: about 4 minutes on 2 cores, once. The demo takes 5 seconds after that.'
	cargo run --release --locked --package larder-cli --bin larder -- demo $(ARGS)

cluster: ## Build larder, start etcd and three nodes, see one die and be replaced. ARGS='--help' shows what it takes.
	@scripts/setup cluster
	@test -x target/release/larder || echo 'Compiling larder and the libraries it uses: about 4 minutes on 2 cores, once.'
	cargo run --release --locked --package larder-cli --bin larder -- cluster demo $(ARGS)

bg: ## Build bg, which rates data stores: target/release/bg.
	@scripts/setup
	cargo build --release --locked --package larder-bg
	@echo 'The shell has a bg of its own: alias bg="$$PWD/target/release/bg"'

test: ## Install what the tests need, then run `cargo xtask ci`: format, lints, tidy, tests.
	@scripts/setup test
	cargo xtask ci

test-spark-3.5: ## Test the Python package on PySpark 3.5, in a virtual environment of its own; `make test` does on the newest PySpark.
	@scripts/setup test
	@cmp -s scripts/requirements-spark-3.5.txt .venv-spark-3.5/installed-requirements.txt || { \
		rm -rf .venv-spark-3.5 && python3 -m venv .venv-spark-3.5 && \
		.venv-spark-3.5/bin/pip install --quiet --requirement scripts/requirements-spark-3.5.txt && \
		cp scripts/requirements-spark-3.5.txt .venv-spark-3.5/installed-requirements.txt; }
	cargo build --locked --package larder-python --package larder-cli
	rm -f python/larder/_native.abi3.so && cp target/debug/liblarder_python.so python/larder/_native.abi3.so
	PYTHONPATH=$$PWD/python .venv-spark-3.5/bin/pytest -q python $(ARGS)

wheel: ## Build the Python package `larder` into dist/.
	@scripts/setup wheel
	cd python && ../.venv-wheel/bin/maturin build --release --locked --out ../dist

fmt: ## Format all Rust code.
	cargo fmt --all

fuzz: ## Fuzz every decoder. SECONDS_EACH=60 says how long; needs a nightly toolchain and cargo-fuzz.
	cargo xtask fuzz $(SECONDS_EACH)

setup: ## Install what building needs, and say what was missing.
	@scripts/setup

-include bench/bench.mk

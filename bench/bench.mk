# Comparisons with other engines. Nothing else needs what these install and compile.

.PHONY: bench-stores

bench-stores: ## Compare stores with LMDB, RocksDB, cdb and more: 10 million keys, about an hour. ARGS='--keys 1000000' is quicker.
	@scripts/setup-bench
	cargo run --release --manifest-path bench/peers/Cargo.toml --bin bench-stores -- $(ARGS)

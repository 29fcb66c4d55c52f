# Comparisons with other engines. Nothing else needs what these install and compile.

.PHONY: bench-stores bench-twip bench-newp

bench-stores: ## Compare stores with LMDB, RocksDB, cdb and more: 10 million keys, about an hour. ARGS='--keys 1000000' is quicker.
	@scripts/setup-bench
	cargo run --release --manifest-path bench/peers/Cargo.toml --bin bench-stores -- $(ARGS)

bench-twip: ## Timelines over the network: larder's join beside Redis, memcached and PostgreSQL, and clients that fan out. ARGS='--edges FILE'.
	@scripts/setup-bench twip
	cargo build --release --locked --package larder-cli --package larder-bench
	target/release/larder-bench twip-net --larder target/release/larder $(ARGS)

bench-newp: ## A news site's page as one read, beside separate reads from Redis.
	@scripts/setup bench
	cargo build --release --locked --package larder-cli --package larder-bench
	target/release/larder-bench newp --larder target/release/larder $(ARGS)

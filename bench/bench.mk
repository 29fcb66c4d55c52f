# Comparisons with other engines. Nothing else needs what these install and compile.

.PHONY: bench-stores bench-evaluation bench-swap-latency bench-twip bench-newp bench-first-fill bench-twip-bars bench-cluster bench-spaces bench-postgres-transaction bench-many-spaces bench-spark bench-bg-ttl bench-bg

bench-stores: ## Compare stores with LMDB, RocksDB, cdb and more: 10 million keys, about an hour. ARGS='--keys 1000000' is quicker.
	@scripts/setup-bench
	cargo run --release --manifest-path bench/peers/Cargo.toml --bin bench-stores -- $(ARGS)

bench-evaluation: ## Voldemort's own evaluation: builds of 1 to 8 GB beside LMDB, its layout and MyISAM, reads at a steady rate, a new version. 30 GB of disk.
	@scripts/setup-bench
	cargo build --release --locked --package larder-cli
	cargo run --release --manifest-path bench/peers/Cargo.toml --bin bench-stores -- --evaluation 1,2,4,8 $(ARGS)

bench-swap-latency: ## Reads while versions are pulled and swapped, beside a quiet server. Run it on a quiet machine.
	cargo build --release --locked --package larder-cli --package larder-bench
	target/release/larder-bench swap-latency --rounds 3 --seconds 10 --rate 2000 --swap-every 1.5 $(ARGS)

bench-twip: ## Timelines over the network: larder's join beside Redis, memcached and PostgreSQL, and clients that fan out. ARGS='--edges FILE'.
	@scripts/setup-bench twip
	cargo build --release --locked --package larder-cli --package larder-bench
	target/release/larder-bench twip-net --larder target/release/larder $(ARGS)

bench-newp: ## A news site's page as one read, beside separate reads from Redis.
	@scripts/setup bench
	cargo build --release --locked --package larder-cli --package larder-bench
	target/release/larder-bench newp --larder target/release/larder $(ARGS)

bench-first-fill: ## What others wait for while one client has a million rows computed, read, dropped or expired.
	cargo build --release --locked --package larder-cli --package larder-bench
	target/release/larder-bench first-fill --larder target/release/larder $(ARGS)

bench-twip-bars: ## The join engine alone, in process: timelines and counts beside their bars. ARGS='--edges FILE --rounds 3'.
	cargo build --release --locked --package larder-bench
	target/release/larder-bench twip-bars $(ARGS)

CLUSTER_PARTS ?= cluster cluster-twip cluster-replicas cluster-failover cluster-growth

bench-cluster: ## Clusters: cost by nodes and copies, Twip, fail-over beside Redis Cluster, a fourth node. CLUSTER_PARTS=cluster-twip for one.
	@scripts/setup test
	cargo build --release --locked --package larder-cli --package larder-bench
	@for part in $(CLUSTER_PARTS); do target/release/larder-bench $$part --larder target/release/larder $(ARGS) || exit 1; done

# Also `space-model`, which needs ARGS='--file hotels.csv --out DIR'.
SPACE_PARTS ?= spaces space-shapes space-servers space-online space-outgrown

bench-spaces: ## Hotels by their attributes, beside PostgreSQL; by what they find; 1 to 8 servers; new subspaces; disk. SPACE_PARTS=spaces for one.
	@scripts/setup-bench twip
	@scripts/setup test
	cargo build --release --locked --package larder-cli --package larder-bench
	@for part in $(SPACE_PARTS); do target/release/larder-bench $$part --larder target/release/larder $(ARGS) || exit 1; done

bench-postgres-transaction: ## One PostgreSQL transaction of a million rows, until all joins have applied it. ARGS='--set postgres.atomic_changes_max=100000'.
	@scripts/setup-bench twip
	@scripts/setup test
	cargo build --release --locked --package larder-cli
	.venv/bin/python bench/postgres_transaction.py $(ARGS)

bench-many-spaces: ## Processor time of HSET and SET on a server with 4,000 spaces, beside one with one space.
	cargo build --release --locked --package larder-cli
	python3 bench/many_spaces.py $(ARGS)

bench-spark: ## Builds on Spark, into a folder, HDFS and S3, beside the builder of one process: rows per CPU second, memory. ARGS='--rows 500000'.
	@scripts/setup test
	cargo build --release --locked --package larder-python
	rm -f python/larder/_native.abi3.so && cp target/release/liblarder_python.so python/larder/_native.abi3.so
	PYTHONPATH=$$PWD/python .venv/bin/python bench/spark.py $(ARGS)

BG_RUNS ?= bench/runs/$(shell date +%Y-%m-%d)-$(shell hostname)

bench-bg-ttl: ## Unpredictable reads of PostgreSQL behind memcached, by time to live, with deletion and with leases. ARGS='--members 1000'.
	@scripts/setup-bench bg
	cargo build --release --locked --package larder-bg
	python3 bench/bg/ttl.py --bg target/release/bg --into $(BG_RUNS) $(ARGS)

bench-bg: ## SoAR of larder, PostgreSQL, PostgreSQL with memcached, MongoDB's protocol and Redis: the report's Figure 6. MEMBERS=1000 is quicker.
	@scripts/setup-bench bg
	cargo build --release --locked --package larder-bg --package larder-cli
	python3 bench/bg/soar.py --bg target/release/bg --larder target/release/larder --into $(BG_RUNS) $(if $(MEMBERS),--members $(MEMBERS)) $(ARGS)

//! Links the C libraries that Debian has: RocksDB and tinycdb.

fn main() {
    println!("cargo::rustc-link-lib=dylib=rocksdb");
    println!("cargo::rustc-link-lib=dylib=cdb");
    println!("cargo::rerun-if-changed=build.rs");
}

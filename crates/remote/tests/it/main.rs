//! Reads and writes at their locations: a misbehaving HTTP server, a simulated S3, and an HDFS.

mod files;
mod hdfs;
mod http;
mod moto;
mod pipe;
mod s3;

/// Runs `future` to completion.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

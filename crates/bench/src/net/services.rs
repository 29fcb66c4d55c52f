//! Servers for comparison, each with its own folder and a free port. They are stopped when dropped.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

pub use larder_testing::find;
use larder_testing::free_port;
use larder_testing::postgres::Programs;

use crate::Result;
use crate::process::{self, Server};

/// The core of the servers. The client uses the other one.
pub const SERVER_CORE: usize = 0;
pub const CLIENT_CORE: usize = 1;

pub fn start_memcached() -> Result<Server> {
    let program = find("memcached").ok_or("memcached is not installed")?;
    let port = free_port();
    let mut command = process::on_core(&program, Some(SERVER_CORE));
    command.args([
        "-l",
        "127.0.0.1",
        "-U",
        "0",
        "-t",
        "1",
        "-m",
        "8192",
        "-I",
        "64m",
    ]);
    command.args(["-p", &port.to_string()]);
    if is_root() {
        command.args(["-u", "root"]);
    }
    process::start_listening(command, port, "memcached")
}

/// Starts PostgreSQL without fsync, on a new database in `folder`. The user postgres must be able to access the folder.
pub fn start_postgres(folder: &Path) -> Result<Server> {
    start_postgres_with(
        folder,
        &[
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
        ],
    )
}

/// Like [`start_postgres`], with settings for the durability of commits.
pub fn start_postgres_with(folder: &Path, durable: &[&str]) -> Result<Server> {
    let programs = Programs::find().ok_or("PostgreSQL is not installed")?;
    let own = folder.join("postgres");
    std::fs::create_dir(&own)?;
    // Allow other users to traverse the folder.
    std::fs::set_permissions(folder, Permissions::from_mode(0o711))?;
    let data = programs.init(&own, "C")?;
    let port = free_port();
    let postgres = programs.path("postgres");
    let mut command = programs.as_user(process::on_core(&postgres, Some(SERVER_CORE)));
    let usual = [
        "shared_buffers=1GB",
        "max_wal_size=4GB",
        "jit=off",
        "log_min_messages=fatal",
    ];
    Programs::serve(&mut command, &data, port, &[&usual, durable].concat());
    command.current_dir(&own).stderr(Stdio::null());
    let mut server = process::start_listening(command, port, "postgres")?;
    // A fast shutdown, which does not wait for clients.
    server.stop_signal = libc::SIGINT;
    Ok(server)
}

/// Starts MariaDB on an empty folder, without the system tables for privileges and time zones, which this benchmark
/// does not use.
pub fn start_mariadb(folder: &Path) -> Result<Server> {
    let program = find("mariadbd").ok_or("MariaDB is not installed")?;
    let data = folder.join("mariadb");
    std::fs::create_dir(&data)?;
    let port = free_port();
    let mut command = process::on_core(&program, Some(SERVER_CORE));
    command.args([
        "--no-defaults",
        "--bind-address=127.0.0.1",
        "--skip-grant-tables",
    ]);
    command.arg(format!("--datadir={}", data.display()));
    command.arg(format!("--socket={}", data.join("socket").display()));
    command.arg(format!("--port={port}"));
    command.args(["--innodb-buffer-pool-size=1G", "--innodb-log-file-size=1G"]);
    // A reused thread would continue the numbering of statements.
    command.args(["--query-cache-type=0", "--thread-cache-size=0"]);
    command.arg("--innodb-stats-persistent=0");
    if is_root() {
        command.arg("--user=root");
    }
    command.stderr(Stdio::null());
    process::start_listening(command, port, "mariadbd")
}

fn is_root() -> bool {
    // SAFETY: the call has no arguments.
    unsafe { libc::geteuid() == 0 }
}

//! Servers to compare with, each in a folder of its own and on a free port; gone when dropped.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;
use crate::process::{self, Server};

/// The core that servers run on; the client has the other.
pub const SERVER_CORE: usize = 0;
pub const CLIENT_CORE: usize = 1;

/// Where a program is, in `PATH` or where Debian keeps PostgreSQL's.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        let mut versions: Vec<PathBuf> = versions
            .flatten()
            .map(|entry| entry.path().join("bin"))
            .collect();
        versions.sort();
        folders.extend(versions.into_iter().rev());
    }
    let mut found = folders.into_iter().map(|folder| folder.join(program));
    found.find(|path| path.is_file())
}

pub fn start_memcached() -> Result<Server> {
    let program = find("memcached").ok_or("memcached is not installed")?;
    let port = free_port()?;
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

/// PostgreSQL without fsync, on a new database in `folder`, which the user postgres must be able to reach.
pub fn start_postgres(folder: &Path) -> Result<Server> {
    let initdb = find("initdb").ok_or("initdb is not installed")?;
    let postgres = find("postgres").ok_or("postgres is not installed")?;
    let data = folder.join("postgres");
    std::fs::create_dir(&data)?;
    if is_root() {
        run(Command::new("chmod").arg("711").arg(folder))?;
        run(Command::new("chown").arg("postgres").arg(&data))?;
    }
    let mut init = as_postgres(&initdb, None);
    init.arg("-D").arg(&data);
    init.args([
        "--auth=trust",
        "--username=postgres",
        "--no-sync",
        "--locale=C",
        "--encoding=UTF8",
    ]);
    run(init.current_dir(folder).stdout(Stdio::null()))?;
    let port = free_port()?;
    let mut command = as_postgres(&postgres, Some(SERVER_CORE));
    command
        .arg("-D")
        .arg(&data)
        .args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", ""]);
    for setting in [
        "fsync=off",
        "synchronous_commit=off",
        "full_page_writes=off",
        "shared_buffers=1GB",
        "max_wal_size=4GB",
        "jit=off",
        "log_min_messages=fatal",
    ] {
        command.args(["-c", setting]);
    }
    command.current_dir(folder).stderr(Stdio::null());
    let mut server = process::start_listening(command, port, "postgres")?;
    // Does not wait for clients.
    server.stop_signal = libc::SIGINT;
    Ok(server)
}

/// A program that refuses to be root's.
fn as_postgres(program: &Path, core: Option<usize>) -> Command {
    let command = process::on_core(program, core);
    if !is_root() {
        return command;
    }
    let mut other = Command::new("setpriv");
    other.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    other.arg(command.get_program()).args(command.get_args());
    other
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} failed: {status}", command.get_program().display()).into())
    }
}

fn is_root() -> bool {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() == 0 }
}

pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

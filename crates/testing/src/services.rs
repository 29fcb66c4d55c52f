//! Redis and memcached, without persistence.

use std::path::PathBuf;
use std::process::Command;

use crate::{Server, free_port, report_missing, temp_folder};

/// Finds a program: in `PATH`, in the folders for root's programs, or in Debian's folders of PostgreSQL, newest
/// version first.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    let mut found = folders.into_iter().map(|folder| folder.join(program));
    found.find(|path| path.is_file())
}

pub fn memcached() -> Option<Server> {
    let Some(program) = find("memcached") else {
        report_missing("memcached");
        return None;
    };
    let port = free_port();
    let mut command = Command::new(program);
    command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    command.args(["-m", "256", "-I", "8m", "-t", "2"]);
    // It refuses to run as root without this option.
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    Some(Server::start(command, port, temp_folder("memcached")))
}

pub fn redis() -> Option<Server> {
    let Some(program) = find("redis-server") else {
        report_missing("Redis");
        return None;
    };
    let folder = temp_folder("redis");
    let port = free_port();
    let mut command = Command::new(program);
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--port"])
        .arg(port.to_string())
        .current_dir(folder.path());
    Some(Server::start(command, port, folder))
}

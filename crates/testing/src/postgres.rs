//! PostgreSQL: the installed programs, their user, a new cluster, a server.
//!
//! As root it runs as the user `postgres`, since PostgreSQL does not run as root.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::{Server, find, free_port, report_missing, temp_folder};

/// The programs of one version, and their user, if it must differ from the current one.
pub struct Programs {
    folder: PathBuf,
    user: Option<(u32, u32)>,
}

impl Programs {
    /// Returns the programs that [`find`] finds. `None` if PostgreSQL is not installed, or only its client.
    pub fn find() -> Option<Programs> {
        let folder = find("initdb")?.parent()?.to_owned();
        let user = rustix::process::geteuid().is_root().then(postgres_user);
        Some(Programs { folder, user })
    }

    pub fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }

    /// Makes a command run as PostgreSQL's user.
    pub fn as_user(&self, mut command: Command) -> Command {
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    /// Changes the owner of a file or a folder to PostgreSQL's user.
    pub fn chown_to_user(&self, path: &Path) -> std::io::Result<()> {
        match self.user {
            Some((user, group)) => chown(path, Some(user), Some(group)),
            None => Ok(()),
        }
    }

    /// Creates a cluster in `data` below `folder`, which then belongs to PostgreSQL's user. Every client connects as
    /// its user `postgres`.
    ///
    /// # Errors
    /// The output of `initdb`.
    pub fn init(&self, folder: &Path, locale: &str) -> Result<PathBuf, String> {
        let data = folder.join("data");
        self.chown_to_user(folder)
            .map_err(|error| error.to_string())?;
        let made = self
            .as_user(Command::new(self.path("initdb")))
            .current_dir(folder)
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"])
            .arg(format!("--locale={locale}"))
            .arg("-D")
            .arg(&data)
            .output()
            .map_err(|error| error.to_string())?;
        if made.status.success() {
            Ok(data)
        } else {
            Err(String::from_utf8_lossy(&made.stderr).into_owned())
        }
    }

    /// Adds the arguments for a server with only TCP connections, with settings such as `fsync=off`.
    pub fn serve(command: &mut Command, data: &Path, port: u16, settings: &[&str]) {
        command.arg("-D").arg(data);
        command.args(["-k", "", "-h", "127.0.0.1", "-p", &port.to_string()]);
        for setting in settings {
            command.args(["-c", setting]);
        }
    }
}

fn postgres_user() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").expect("readable");
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let line = line.expect("Debian's postgresql makes the user postgres");
    let mut ids = line.split(':').skip(2).map(|id| id.parse().expect("an id"));
    let ids = ids.next().zip(ids.next());
    ids.expect("a line of /etc/passwd has a user and a group")
}

/// Starts a server with a new cluster. `None` if PostgreSQL is not installed.
pub fn start(settings: &[&str]) -> Option<Server> {
    let Some(programs) = Programs::find() else {
        report_missing("PostgreSQL");
        return None;
    };
    let folder = temp_folder("postgres");
    let data = programs.init(folder.path(), "C.UTF-8");
    let data = data.unwrap_or_else(|why| panic!("initdb: {why}"));
    let port = free_port();
    let mut command = programs.as_user(Command::new(programs.path("postgres")));
    command.current_dir(folder.path());
    // The tests do not crash the machine, and the system keeps what a killed process wrote.
    let settings = [&["fsync=off"], settings].concat();
    Programs::serve(&mut command, &data, port, &settings);
    // SIGINT is the fast shutdown, which does not wait for clients.
    let server = Server::start_until(command, port, folder, Signal::INT, is_ready);
    Some(server)
}

/// Returns what `pg_ctl` waits for: the status in the eighth line of the server's pid file, if the first line has
/// this server's pid.
fn is_ready(server: &Server, pid: Pid) -> bool {
    let file = server.folder().join("data/postmaster.pid");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines();
    lines.next() == Some(&*pid.as_raw_nonzero().to_string())
        && lines.nth(6).map(str::trim) == Some("ready")
}

//! Support for end-to-end tests: the binary, servers, and input files.
//!
//! A server listens on free loopback ports and keeps its data in the given folder, so that a test may start a second
//! one on the same folder after killing the first.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use larder_client::{AdminClient, RespClient};

/// Returns a command that runs `larder`, without the user's own settings.
pub fn larder() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    for (name, _) in std::env::vars() {
        if name.starts_with("LARDER_") {
            command.env_remove(name);
        }
    }
    command.env("NO_COLOR", "1");
    command
}

/// Runs `larder` with these arguments until it exits.
pub fn run<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Output {
    larder()
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("larder runs")
}

/// Like [`run`]. Checks that it succeeds, and returns its standard output.
#[track_caller]
pub fn run_ok<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", show(&output));
    text(&output.stdout)
}

/// Like [`run`]. Checks that it fails with this exit code, and returns its standard error.
#[track_caller]
pub fn run_failing<I: AsRef<OsStr>>(code: i32, arguments: impl IntoIterator<Item = I>) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{}", show(&output));
    text(&output.stderr)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn show(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// Makes a shell run `script` in place of a command of [`spawn_server_with`]. In the script, `"$@"` is that command.
pub fn through_shell(command: &mut Command, script: &str) {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    *command = shell;
}

/// A running `larder serve`, killed on drop.
pub struct Server {
    child: Child,
    /// Kept open, because the server writes to it later.
    _stdout: BufReader<std::process::ChildStdout>,
    pub resp: String,
    pub http: String,
}

/// Starts a server on the data folder and waits until it is ready.
pub fn spawn_server(data: &Path) -> Server {
    spawn_server_with(data, |_| {})
}

/// Returns the command `larder serve` with free ports and piped output.
pub fn serve_command(data: &Path) -> Command {
    let mut command = larder();
    command
        .args([
            "serve",
            "--json",
            "--resp",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--data",
        ])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Like [`spawn_server`], with additional arguments or environment variables, such as `LARDER_FAULT_POINT`.
#[track_caller]
pub fn spawn_server_with(data: &Path, adjust: impl FnOnce(&mut Command)) -> Server {
    let mut command = serve_command(data);
    adjust(&mut command);
    let mut child = command.spawn().expect("larder runs");
    let mut stderr = child.stderr.take().expect("piped");
    // A thread reads the log, so that a full pipe never blocks the server.
    let log = std::thread::spawn(move || {
        let mut complete = String::new();
        let _ = stderr.read_to_string(&mut complete);
        complete
    });
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("the first line");
    let Ok(ready) = serde_json::from_str::<serde_json::Value>(&line) else {
        let status = child.wait();
        panic!(
            "the server did not start: {status:?}, {line:?}, {:?}",
            log.join()
        );
    };
    let address = |name: &str| ready[name].as_str().expect("an address").to_owned();
    Server {
        child,
        _stdout: stdout,
        resp: address("resp"),
        http: address("http"),
    }
}

impl Server {
    pub fn resp(&self) -> RespClient {
        RespClient::new(self.resp.clone())
    }

    pub fn admin(&self) -> AdminClient {
        AdminClient::new(&self.http).expect("a server's own address")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the server with SIGKILL, as a crash would.
    pub fn kill(mut self) {
        self.child.kill().expect("the server was running");
        self.child.wait().expect("our own child");
    }

    /// Waits until the server exits, at a fault point or after a signal.
    pub fn wait(mut self) -> std::process::ExitStatus {
        self.child.wait().expect("our own child")
    }

    /// Sends SIGTERM, which stops the server.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends a signal, given as an option of kill(1).
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([signal, &pid])
            .status()
            .expect("kill runs");
        assert!(sent.success());
    }

    /// Stops the server with SIGTERM and waits for its exit.
    pub fn stop(self) -> std::process::ExitStatus {
        self.terminate();
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes `rows` as a CSV file `key,value` with a header.
pub fn write_csv(
    folder: &Path,
    name: &str,
    rows: impl IntoIterator<Item = (String, String)>,
) -> PathBuf {
    let path = folder.join(name);
    let mut text = String::from("key,value\n");
    for (key, value) in rows {
        text.push_str(&format!("{key},{value}\n"));
    }
    std::fs::write(&path, text).expect("a temporary folder is writable");
    path
}

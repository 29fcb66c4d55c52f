//! Servers as processes: started on one core, measured by CPU time, stopped when dropped.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

pub struct Server {
    child: Child,
    pub resp: SocketAddr,
    /// The HTTP API; `None` for Redis.
    pub http: Option<String>,
    /// The signal that stops the process.
    pub stop_signal: i32,
}

/// Returns the given binary, or builds one next to this program.
pub fn larder_binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let mut build = Command::new("cargo");
    build.args(["build", "--package", "larder-cli", "--bin", "larder"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    if !build.status()?.success() {
        return Err(
            "the binary larder cannot be built; build it, and give it with --larder".into(),
        );
    }
    let folder = std::env::current_exe()?;
    Ok(folder
        .parent()
        .ok_or("this program has no folder")?
        .join("larder"))
}

/// Starts `larder serve` with this number of threads for RESP, on `core` if given.
pub fn start_larder(
    binary: &Path,
    data: &Path,
    core: Option<usize>,
    threads: u32,
) -> Result<Server> {
    start_larder_with(binary, data, core, threads, &[])
}

/// Like [`start_larder`], with settings in the form `name=value`.
pub fn start_larder_with(
    binary: &Path,
    data: &Path,
    core: Option<usize>,
    threads: u32,
    settings: &[String],
) -> Result<Server> {
    let mut command = on_core(binary, core);
    command.args([
        "serve",
        "--json",
        "--resp",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]);
    command.args([
        "--set",
        &format!("server.threads={threads}"),
        "--set",
        "log.level=warn",
    ]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command.arg("--data").arg(data);
    serve(&mut command)
}

/// Starts `larder serve --json`, and waits until it reports its addresses.
pub fn serve(command: &mut Command) -> Result<Server> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("larder has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let ready: serde_json::Value = serde_json::from_str(&line)
        .map_err(|_| format!("larder serve printed {line:?} instead of its addresses"))?;
    let text = |name: &str| {
        ready[name]
            .as_str()
            .map(str::to_owned)
            .ok_or(format!("larder serve did not print its {name} address"))
    };
    Ok(Server {
        child,
        resp: text("resp")?.parse()?,
        http: Some(text("http")?),
        stop_signal: libc::SIGTERM,
    })
}

/// Starts `redis-server` without persistence, on `core`.
pub fn start_redis(binary: &str, core: usize) -> Result<Server> {
    let port = larder_testing::free_port();
    let mut command = on_core(Path::new(binary), Some(core));
    command.args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--loglevel",
        "warning",
    ]);
    start_listening(command, port, binary)
}

/// Starts a server, and waits until it accepts connections.
pub fn start_listening(mut command: Command, port: u16, name: &str) -> Result<Server> {
    let child = command.stdout(Stdio::null()).spawn()?;
    let resp = SocketAddr::from(([127, 0, 0, 1], port));
    let mut server = Server {
        child,
        resp,
        http: None,
        stop_signal: libc::SIGTERM,
    };
    let started = Instant::now();
    while TcpStream::connect(resp).is_err() {
        if let Some(status) = server.child.try_wait()? {
            return Err(format!("{name} exited immediately: {status}").into());
        }
        if started.elapsed() > Duration::from_secs(30) {
            return Err(format!("{name} does not listen on port {port} after 30 seconds").into());
        }
        std::thread::yield_now();
    }
    Ok(server)
}

pub fn on_core(binary: &Path, core: Option<usize>) -> Command {
    let Some(core) = core else {
        return Command::new(binary);
    };
    let mut command = Command::new("taskset");
    command.arg("-c").arg(core.to_string()).arg(binary);
    command
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process immediately.
    pub fn kill(mut self) {
        self.stop_signal = libc::SIGKILL;
    }

    /// Returns the CPU time so far of all threads and of running child processes, in seconds.
    pub fn cpu_s(&self) -> Result<f64> {
        self.stats()?.iter().map(|stat| cpu_s(stat)).sum()
    }

    /// Returns the resident memory. Memory shared by child processes counts for each of them.
    pub fn resident_bytes(&self) -> Result<u64> {
        let mut pages = 0;
        for stat in self.stats()? {
            pages += field(&stat, 21)?;
        }
        Ok(pages * 4096)
    }

    /// Returns `/proc/PID/stat` of the process and of its children.
    fn stats(&self) -> Result<Vec<String>> {
        let read = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let own = u64::from(self.child.id());
        let mut stats = vec![read(&own.to_string())?];
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
                continue;
            };
            // A process that has ended meanwhile is not one of ours.
            if let Ok(stat) = read(pid)
                && field(&stat, 1).is_ok_and(|parent| parent == own)
            {
                stats.push(stat);
            }
        }
        Ok(stats)
    }
}

/// Returns the CPU time so far of all threads of a process, in seconds.
pub fn cpu_s_of(pid: u32) -> Result<f64> {
    cpu_s(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?)
}

fn cpu_s(stat: &str) -> Result<f64> {
    // User and system time are the 12th and 13th fields after the name.
    let ticks = field(stat, 11)? + field(stat, 12)?;
    // SAFETY: `sysconf` takes only a number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Ok(ticks as f64 / per_second)
}

/// Returns a number after the name, which is in parentheses and may contain any characters.
fn field(stat: &str, at: usize) -> Result<u64> {
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let field = fields.split_whitespace().nth(at);
    let number = field.and_then(|field| field.parse().ok());
    number.ok_or_else(|| "/proc/PID/stat is too short".into())
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: the child is ours and has not been waited for, so its process id has not been reused.
        unsafe { libc::kill(self.child.id() as i32, self.stop_signal) };
        let _ = self.child.wait();
    }
}

/// Pins this thread, and the threads it starts, to one core.
pub fn pin_self(core: usize) -> Result<()> {
    // SAFETY: an all-zero set is a valid empty set, and the set outlives the call.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if pinned == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().into())
    }
}

pub fn core_count() -> usize {
    // `available_parallelism` would count only the cores of this thread's affinity. SAFETY: `sysconf` takes only a
    // number.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize
}

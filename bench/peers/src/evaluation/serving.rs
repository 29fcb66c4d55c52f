//! Reads of larder's server and of MariaDB, and what reads notice of a new version.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::clients::{Client, Prepared, Resp};
use super::eviction::evict;
use super::myisam::MyIsam;
use super::steady::{CONNECTIONS, Draw, Load, read};
use super::{Measured, Options, Read, Swap, data_of};
use crate::data::DataSet;
use crate::engine::Result;

/// Of the reads while a version goes live.
const SWAP_RATE: u64 = 2000;
const SWAP_SECONDS: u64 = 40;
const PUSH_AFTER: Duration = Duration::from_secs(5);

pub fn run(options: &Options, measured: &mut Measured) -> Result<()> {
    let data = data_of(options, options.read_gb)?;
    let larder = LarderServer::start(options)?;
    let versions = [8, 16].map(|partitions| larder.build(options, &data, partitions));
    let [first, second] = versions;
    let (first, second) = (first?, second?);
    larder.push(&first)?;
    let connect = || -> Result<Vec<Box<dyn Client>>> {
        let one = |_| Ok(Box::new(Resp::connect(&larder.resp)?) as Box<dyn Client>);
        (0..CONNECTIONS).map(one).collect()
    };
    rates(options, &data, "larder", measured, &connect)?;

    swap(
        &data,
        measured,
        &connect,
        &|| evict(larder.child.id(), &options.work.join("larder")),
        "a version is pushed; all files of the server were evicted before",
        || larder.push(&second),
    )?;
    swap(
        &data,
        measured,
        &connect,
        &|| evict(larder.child.id(), &options.work.join("larder")),
        "rollback to the previous version; all files of the server were evicted before",
        || larder.rollback(),
    )?;
    drop(larder);
    for folder in [&first, &second, &options.work.join("larder")] {
        fs::remove_dir_all(folder)?;
    }

    let folder = options.work.join("mariadb");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let server = MyIsam::start(&folder)?;
    server.load(&data)?;
    let connect = || -> Result<Vec<Box<dyn Client>>> {
        let one = |_| Ok(Box::new(Prepared::new(server.connect()?)?) as Box<dyn Client>);
        (0..CONNECTIONS).map(one).collect()
    };
    rates(options, &data, "myisam", measured, &connect)?;
    drop(server);
    fs::remove_dir_all(&folder)?;
    Ok(())
}

type Connect<'a> = dyn Fn() -> Result<Vec<Box<dyn Client>>> + 'a;

fn rates(
    options: &Options,
    data: &DataSet,
    engine: &str,
    measured: &mut Measured,
    connect: &Connect<'_>,
) -> Result<()> {
    // Reads all data once before the measurement: the data fits in memory.
    let warm = Load {
        data,
        draw: Draw::Uniform,
        rate: 20_000,
        seconds: 10,
    };
    read(&warm, connect()?)?;
    for draw in [Draw::Uniform, Draw::Zipf] {
        for &rate in &options.rates {
            let load = Load {
                data,
                draw,
                rate,
                seconds: options.seconds,
            };
            let total = read(&load, connect()?)?.total()?;
            eprintln!(
                "{engine} {draw:?} {rate}/s: p50 {:.0} us, p99 {:.0} us",
                total.p50_us, total.p99_us
            );
            measured.reads.push(Read {
                engine: engine.to_owned(),
                draw,
                rate,
                reads: total.reads,
                failed: total.failed,
                p50_us: total.p50_us,
                p99_us: total.p99_us,
            });
        }
    }
    Ok(())
}

/// Reads at a steady rate. Some seconds after they have begun the server's files are evicted and another version goes live.
fn swap(
    data: &DataSet,
    measured: &mut Measured,
    connect: &Connect<'_>,
    evict: &(dyn Fn() -> Result<()> + Sync),
    what: &str,
    go: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let load = Load {
        data,
        draw: Draw::Uniform,
        rate: SWAP_RATE,
        seconds: SWAP_SECONDS,
    };
    let clients = connect()?;
    let began = Instant::now();
    let (seconds, live) = std::thread::scope(|scope| -> Result<_> {
        let swapper = scope.spawn(move || -> std::result::Result<f64, String> {
            std::thread::sleep(PUSH_AFTER);
            evict().map_err(|error| error.to_string())?;
            go().map_err(|error| error.to_string())?;
            Ok(began.elapsed().as_secs_f64())
        });
        let seconds = read(&load, clients)?;
        let live = swapper.join().map_err(|_| "the swap panicked")??;
        Ok((seconds, live))
    })?;
    eprintln!("swap ({what}) was done after {live:.1} s");
    measured.swaps.push(Swap {
        what: what.to_owned(),
        at: live,
        seconds: seconds.per_second(),
    });
    Ok(())
}

struct LarderServer {
    binary: PathBuf,
    child: Child,
    resp: String,
    http: String,
}

impl LarderServer {
    fn start(options: &Options) -> Result<LarderServer> {
        let data = options.work.join("larder");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let mut child = Command::new(&options.larder)
            .args([
                "serve",
                "--json",
                "--resp",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
            ])
            .args(["--set", "log.level=warn", "--data"])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("larder has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let ready: serde_json::Value = serde_json::from_str(&line)?;
        let text = |name: &str| {
            let text = ready[name].as_str().map(str::to_owned);
            text.ok_or(format!("larder serve did not print its {name} address"))
        };
        Ok(LarderServer {
            resp: text("resp")?,
            http: text("http")?,
            binary: options.larder.clone(),
            child,
        })
    }

    fn build(&self, options: &Options, data: &DataSet, partitions: u32) -> Result<PathBuf> {
        let out = options.work.join(format!("version-{partitions}"));
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        let partitions = partitions.to_string();
        self.larder(
            &[
                "build",
                "--store",
                "bench",
                "--key",
                "key",
                "--value",
                "value",
                "--partitions",
                &partitions,
                "--out",
            ],
            &[&out, &data.csv],
        )?;
        Ok(out)
    }

    fn push(&self, version: &Path) -> Result<()> {
        self.larder(
            &["push", "--store", "bench", "--server", &self.http],
            &[version],
        )
    }

    fn rollback(&self) -> Result<()> {
        self.larder(&["store", "rollback", "bench", "--server", &self.http], &[])
    }

    fn larder(&self, arguments: &[&str], paths: &[&Path]) -> Result<()> {
        let mut command = Command::new(&self.binary);
        command.args(arguments).args(paths).stdout(Stdio::null());
        let output = command.output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into()),
        }
    }
}

impl Drop for LarderServer {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

//! A disk that is temporarily full: writes are rejected, every interface reports it, and writes resume automatically
//! once there is space.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use larder_protocol::config::Fsync;

use crate::resp::Client;
use crate::support::{TestServer, until};

/// A small in-memory file system, unmounted on drop.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    /// Returns `None` if this user may not mount file systems.
    pub fn mount(path: &Path, megabytes: u32) -> Option<SmallDisk> {
        fs::create_dir(path).expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m")])
            .arg("larder-test")
            .arg(path)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| SmallDisk(path.to_owned()))
    }

    fn resize(&self, megabytes: u32) {
        let remounted = Command::new("mount")
            .args(["-o", &format!("remount,size={megabytes}m")])
            .arg(&self.0)
            .status();
        assert!(remounted.expect("mount runs").success());
    }

    /// Fills all free space, including any freed since the previous call.
    pub fn fill(&self) {
        let filler = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.0.join("filler"));
        let mut filler = filler.expect("the filler is opened");
        let full = filler.write_all(&vec![0; 8 << 20]);
        full.expect_err("the filler takes more than the file system has");
    }

    pub fn free(&self) {
        fs::remove_file(self.0.join("filler")).expect("removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_rejects_writes_is_reported_and_recovers_automatically() {
    for (threads, fsync) in [(1, Fsync::EverySecond), (2, Fsync::Always)] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 4) else {
            return larder_testing::report_unsupported("mount a small file system (it takes root)");
        };
        let mut server = TestServer::with(|config| {
            config.server.data = disk.0.join("data");
            config.server.threads = threads;
            config.tables.fsync = fsync;
        });
        let mut held = Client::connect(&server);
        let mut other = Client::connect(&server);
        for n in 0..20 {
            held.send(format!("SET t|{n} before\r\n").as_bytes());
            assert_eq!(held.reply(), "+OK");
        }
        held.send(b"FT.CREATE hotels PREFIX 1 hotel: SCHEMA city TAG\r\n");
        assert_eq!(held.reply(), "+OK");
        for n in 0..5 {
            held.send(format!("HSET hotel:{n} city rome\r\n").as_bytes());
            assert_eq!(held.reply(), ":1");
        }
        disk.fill();
        // This write exceeds the rest of the last block. It is executed, and its reply waits for the journal.
        held.send(format!("SET t|held {}\r\n", "x".repeat(20_000)).as_bytes());
        until("not ready", || server.get("/readyz").0 == 503);

        let why = "tables currently reject writes: cannot write";
        let (_, response) = server.get("/readyz");
        let response = response.as_str().expect("text").to_owned();
        assert!(response.starts_with(why), "{response}");
        assert!(
            response.contains("the disk is full; free space there"),
            "{response}"
        );
        for request in [
            "SET t|refused 1",
            "DEL t|1",
            "INCR t|refused",
            "MSET t|refused 1 u|refused 1",
            "JOIN.CREATE j \"o|<a> = copy t|<a>\"",
        ] {
            // Another core may learn of the full disk a moment later, and the writes that it executes until then wait.
            // That does not affect these requests.
            other.send(format!("{request}\r\n").as_bytes());
            let reply = other.reply();
            assert!(reply.starts_with(&format!("-DISKFULL {why}")), "{reply}");
        }
        other.send(b"MULTI\r\nSET t|refused 1\r\nSET u|refused 1\r\nEXEC\r\n");
        let replies: Vec<String> = (0..4).map(|_| other.reply()).collect();
        assert!(replies[3].contains("-DISKFULL "), "{replies:?}");
        other.send(b"GET t|1\r\n");
        assert_eq!(other.reply(), "$6|before", "reads continue");
        // Commands on spaces are rejected as well. With several cores, one of them may learn of the full disk later,
        // as above.
        let of_spaces = [
            "HSET hotel:9 city rome",
            "OBJ.CHANGE hotel:1 DO PUT city oslo",
            "FT.CHANGE hotels @city:{rome} DO PUT city oslo",
            "FT.CHANGE hotels @city:{rome} DO DELETE",
            "FT.CREATE inns PREFIX 1 inn: SCHEMA city TAG",
            "FT.ALTER hotels SCHEMA ADD stars NUMERIC",
            "FT.ALTER hotels INDEX 1 city",
            "FT.DROPINDEX hotels DD",
        ];
        for request in of_spaces.into_iter().filter(|_| threads == 1) {
            other.send(format!("{request}\r\n").as_bytes());
            let reply = other.reply();
            assert!(reply.contains("DISKFULL"), "{request}: {reply}");
        }
        let found = |client: &mut Client| {
            client.send(b"FT.SEARCH hotels @city:{rome} LIMIT 0 0\r\nFT._LIST\r\n");
            [client.reply(), client.reply()]
        };
        let before = found(&mut other);
        assert!(before[0].contains(":5"), "{before:?}");
        other.send(b"INFO tables\r\n");
        let info = other.reply();
        assert!(info.contains("tables_last_snapshot:ok"), "{info}");
        assert!(
            info.contains("tables_writes:refused: tables currently reject writes"),
            "{info}"
        );
        let gauge = |server: &TestServer| {
            let (_, metrics) = server.get("/metrics");
            let metrics = metrics.as_str().expect("text").to_owned();
            let mut lines = metrics.lines();
            let line = lines.find(|line| line.starts_with("larder_tables_writes_refused "));
            line.expect("the gauge").to_owned()
        };
        assert!(gauge(&server).ends_with(" 1"));
        let (_, stats) = server.get("/v1/stats");
        assert!(stats["tables_refuse_writes"].is_string(), "{stats}");

        disk.free();
        assert_eq!(held.reply(), "+OK", "it was held, not lost");
        until("ready again", || server.get("/readyz").0 == 200);
        assert!(gauge(&server).ends_with(" 0"));
        let (_, stats) = server.get("/v1/stats");
        assert!(stats["tables_refuse_writes"].is_null(), "{stats}");
        other.send(b"SET t|after 1\r\n");
        assert_eq!(other.reply(), "+OK");

        server.restart(|_| {});
        let mut client = Client::connect(&server);
        client.send(b"RANGECOUNT t| t}\r\nSTRLEN t|held\r\nEXISTS t|refused u|refused\r\n");
        let replies: Vec<String> = (0..3).map(|_| client.reply()).collect();
        assert_eq!(replies, [":22", ":20000", ":0"]);
        assert_eq!(found(&mut client), before);
    }
}

#[test]
fn a_snapshot_that_fails_for_lack_of_space_is_reported_and_retried() {
    let folder = tempfile::tempdir().expect("a folder");
    // The log must exceed 64 MiB to trigger a snapshot.
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 73) else {
        return larder_testing::report_unsupported("mount a small file system (it takes root)");
    };
    let server = TestServer::with(|config| config.server.data = disk.0.join("data"));
    let mut client = Client::connect(&server);
    let value = "x".repeat(1 << 20);
    let rewrite = |client: &mut Client, rows: u32| {
        for row in 0..rows {
            // While a snapshot is being written, it may temporarily take the space that a write needs.
            until("the write succeeds", || {
                let reply = client.call(&format!("SET big|{} {value}", row % 12));
                assert!(reply == "+OK" || reply.starts_with("-DISKFULL "), "{reply}");
                reply == "+OK"
            });
        }
    };
    rewrite(&mut client, 66);
    let has_line = |client: &mut Client, text: &str| client.call("INFO tables").contains(text);
    until("the snapshot fails", || {
        has_line(&mut client, "tables_last_snapshot:failed: cannot write")
    });
    until("ready", || server.get("/readyz").0 == 200);
    assert_eq!(client.call("SET t|on 1"), "+OK");
    disk.resize(200);
    // The server retries the snapshot when the log has grown by half.
    rewrite(&mut client, 40);
    until("the snapshot is written", || {
        has_line(&mut client, "tables_last_snapshot:ok")
    });
    until("the earlier logs are removed", || {
        let files = fs::read_dir(disk.0.join("data/tables")).expect("the folder");
        // The log, the snapshot, and the file that names the newest log.
        files.count() == 3
    });
}

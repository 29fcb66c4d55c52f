//! A node whose disk hangs or is full gives up its slots to the nodes that have replicas of them, and returns when it
//! can serve again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::harness::{Cluster, Options};
use super::rows::{fill_disk, owned_keys, wait_until_settled};
use crate::full_disk::SmallDisk;
use crate::resp::request;

/// A file system that can be frozen, unmounted on drop.
struct LoopDisk(PathBuf);

/// While this exists, no write or sync on the file system completes. A process that is blocked in one cannot be
/// killed.
struct Frozen<'a>(&'a LoopDisk);

impl LoopDisk {
    /// Returns `None` if this user may not mount file systems.
    fn mount(folder: &Path) -> Option<LoopDisk> {
        let (image, path) = (folder.join("image"), folder.join("disk"));
        let file = fs::File::create(&image).expect("a file");
        file.set_len(64 << 20).expect("a sparse file");
        fs::create_dir(&path).expect("a folder");
        let formatted = run("mkfs.ext4", &["-q"], &image);
        let mounted = formatted
            && Command::new("mount")
                .args(["-o", "loop"])
                .args([&image, &path])
                .output()
                .is_ok_and(|output| output.status.success());
        mounted.then(|| LoopDisk(path))
    }

    fn freeze(&self) -> Frozen<'_> {
        assert!(run("fsfreeze", &["--freeze"], &self.0));
        Frozen(self)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        assert!(run("fsfreeze", &["--unfreeze"], &self.0.0));
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> bool {
    Command::new(program)
        .args(arguments)
        .arg(path)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Starts three nodes, the last one with its data folder at `data`.
fn cluster(data: &Path) -> Option<Cluster> {
    let options = Options::new(3)
        .set("tables.replicas", 2)
        .set("tables.stall_seconds", 1)
        .set_on(2, "server.data", data.display());
    let cluster = options.start()?;
    wait_until_settled(&cluster);
    Some(cluster)
}

fn status(cluster: &Cluster, node: usize) -> String {
    cluster.get(node, "/v1/cluster").1
}

fn wait_until_slots_moved(cluster: &Cluster) {
    cluster.wait_until_down(0, 2);
    cluster.wait_for("other nodes serve its slots", || {
        cluster
            .ask(0, "CLUSTER INFO")
            .contains("cluster_slots_ok:16384")
    });
}

#[test]
fn a_node_with_a_hanging_disk_gives_up_its_slots_until_the_disk_recovers() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = LoopDisk::mount(folder.path()) else {
        return larder_testing::report_unsupported(
            "mount a file system and freeze it (it takes root)",
        );
    };
    let Some(cluster) = cluster(&disk.0.join("data")) else {
        return;
    };
    let keys = owned_keys(&cluster, 2, 20);
    for key in &keys {
        cluster.client(2).check(&format!("SET {key} before"), "+OK");
    }
    let frozen = disk.freeze();
    let mut hung = cluster.client(2);
    hung.send(&request(&["SET", &keys[0], "unknown"]));
    wait_until_slots_moved(&cluster);
    for key in &keys[1..] {
        let mut client = cluster.client(0);
        client.check(&format!("GET {key}"), "$6|before");
        client.check(&format!("SET {key} after"), "+OK");
    }
    let hangs = "the disk hangs: it has not completed a write or sync of the journal";
    let status_text = status(&cluster, 0);
    assert!(
        status_text.contains(&format!("node n3 cannot serve: {hangs}")),
        "{status_text}"
    );
    let (code, why) = cluster.get(2, "/readyz");
    assert!(code == 503 && why.contains(hangs), "{code} {why}");

    drop(frozen);
    cluster.wait_for_state(2, "up");
    cluster.wait_until_served();
    wait_until_settled(&cluster);
    for key in &keys[1..] {
        cluster.client(2).check(&format!("GET {key}"), "$5|after");
    }
    let status_text = status(&cluster, 0);
    assert!(!status_text.contains("cannot serve"), "{status_text}");
}

#[test]
fn a_node_with_a_full_disk_gives_up_its_slots() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 6) else {
        return larder_testing::report_unsupported("mount a small file system (it takes root)");
    };
    let Some(cluster) = cluster(&disk.0.join("data")) else {
        return;
    };
    let keys = owned_keys(&cluster, 2, 20);
    for key in &keys {
        cluster.client(2).check(&format!("SET {key} before"), "+OK");
    }
    let _held = fill_disk(&cluster, 2, &disk, &keys[0]);
    wait_until_slots_moved(&cluster);
    for key in &keys[1..] {
        let mut client = cluster.client(0);
        client.check(&format!("GET {key}"), "$6|before");
        client.check(&format!("SET {key} after"), "+OK");
    }
    let status_text = status(&cluster, 0);
    let full = "node n3 cannot serve: the journal could not be written for 1 s or longer";
    assert!(status_text.contains(full), "{status_text}");
    assert_eq!(cluster.get(2, "/readyz").0, 503);

    disk.free();
    cluster.wait_for_state(2, "up");
    cluster.wait_until_served();
    wait_until_settled(&cluster);
    for key in &keys[1..] {
        cluster.client(2).check(&format!("GET {key}"), "$5|after");
    }
}

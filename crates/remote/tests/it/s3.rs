//! Puts, lists, reads and removes objects. The settings come from the environment, as for users, so the test runs
//! itself again in a process that has them.

use std::io::Read;
use std::process::Command;

use futures::TryStreamExt;
use larder_remote::{Error, Location};

use crate::moto::S3;
use crate::wait;

/// Set in the process that has the settings.
const INSIDE: &str = "LARDER_TEST_INSIDE_S3";

#[test]
fn files_are_written_listed_read_from_any_byte_and_removed() {
    if std::env::var_os(INSIDE).is_some() {
        return put_list_read_and_remove();
    }
    let Some(s3) = S3::start() else { return };
    let mut again = Command::new(std::env::current_exe().unwrap());
    again
        .args([
            "--exact",
            "s3::files_are_written_listed_read_from_any_byte_and_removed",
        ])
        .env(INSIDE, "1");
    let output = s3.adjust(&mut again).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
    let (_, left) = s3.request("GET", "/larder?list-type=2");
    assert!(left.contains("<KeyCount>0<"), "{left}");
}

fn put_list_read_and_remove() {
    let folder = tempfile::tempdir().unwrap();
    // Several parts of an upload, the last of them short.
    let bytes: Vec<u8> = (0..20_000_003u32)
        .map(|i| (i.wrapping_mul(31) >> 7) as u8)
        .collect();
    let local = folder.path().join("local");
    std::fs::write(&local, &bytes).unwrap();
    let root = Location::parse("s3://larder/some folder").unwrap();
    let [large, small] = ["a/large.bin", "small.bin"].map(|name| root.join(name).unwrap());

    let done = std::sync::Mutex::new(Vec::new());
    wait(large.put_file(&local, &|at| done.lock().unwrap().push(at))).unwrap();
    let done = done.into_inner().unwrap();
    assert!(
        done.is_sorted() && done.last() == Some(&(bytes.len() as u64)),
        "{done:?}"
    );
    std::fs::write(&local, b"twelve bytes").unwrap();
    wait(small.put_file(&local, &|_| {})).unwrap();

    assert_eq!(large.size_blocking().unwrap(), bytes.len() as u64);
    let found = wait(root.list()).unwrap();
    let names: Vec<String> = found.iter().map(|f| f.location.file_name()).collect();
    assert_eq!(
        names,
        ["small.bin"],
        "files of the folder, not of folders inside it"
    );
    let found = Location::parse("s3://larder/some folder/*/large.*").unwrap();
    assert_eq!(found.list_blocking().unwrap().len(), 1);

    assert_eq!(wait(small.get_all(12)).unwrap(), b"twelve bytes"[..]);
    let refused = wait(small.get_all(11)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TooLarge {
                size: 12,
                max: 11,
                ..
            }
        ),
        "{refused}"
    );
    let mut read = Vec::new();
    large.reader().unwrap().read_to_end(&mut read).unwrap();
    assert!(read == bytes, "all of it, in order");
    let from = |offset: u64| {
        wait(async {
            let parts: Vec<_> = large.stream(offset).await?.try_collect().await?;
            Ok::<_, Error>(parts.concat())
        })
    };
    for offset in [1, 8 << 20, bytes.len() - 1, bytes.len()] {
        assert!(
            from(offset as u64).unwrap() == bytes[offset..],
            "from {offset}"
        );
    }
    let error = from(bytes.len() as u64 + 1).unwrap_err();
    assert!(
        !error.is_retryable() && error.to_string().contains("the file has only"),
        "{error}"
    );

    for location in [&large, &small] {
        wait(location.remove()).unwrap();
        let gone = location.size_blocking().unwrap_err();
        assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
        wait(location.remove()).expect("removing it again is the same");
    }
}

//! Regular files, and things that only look like files.

use std::fs::File;
use std::io::{Read, Write};

use larder_remote::{Allowed, Error, Location};

use crate::pipe::make_pipe;
use crate::wait;

/// If opening waited for a writer, this test would hang.
#[test]
fn pipes_devices_and_folders_are_refused_by_all_read_functions() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    for (path, what) in [
        (pipe.as_path(), "a pipe"),
        (std::path::Path::new("/dev/zero"), "a device"),
        (folder.path(), "a folder"),
    ] {
        let location = Location::local(path);
        let errors = [
            location.reader().err(),
            location.size_blocking().err(),
            wait(location.stream(0)).err(),
            wait(location.get_all(10)).err(),
        ];
        for error in errors {
            let error = error.expect("refused");
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}

#[test]
fn a_regular_file_is_read_by_all_read_functions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    File::create(&path)
        .unwrap()
        .write_all(b"some bytes")
        .unwrap();
    let allowed = Allowed::parse(&[folder.path().to_str().unwrap().to_owned()]).unwrap();
    let location = Location::local(&path).within(&allowed).unwrap();
    let mut text = String::new();
    location
        .reader()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(
        (text.as_str(), location.size_blocking().unwrap()),
        ("some bytes", 10)
    );
    assert_eq!(&wait(location.get_all(10)).unwrap()[..], b"some bytes");
}

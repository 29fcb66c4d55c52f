//! Versions in an object store: `larder build --out s3://...`, and a pull from the bucket.

use larder_protocol::http::PullState;

use crate::fixture::{RECORDS, build_command, pull, served, succeed, value};
use crate::moto::S3;
use crate::support::{larder, run_ok, spawn_server_with, write_csv};

#[test]
fn a_version_built_into_s3_is_pulled_from_there() {
    let Some(s3) = S3::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    let rows = (0..RECORDS).map(|number| (format!("key{number}"), value('s', number)));
    let input = write_csv(temp.path(), "rows.csv", rows);
    let url = "s3://larder/versions/1";
    succeed(s3.adjust(&mut build_command(&input, url)));

    let server = spawn_server_with(&temp.path().join("data"), |command| {
        s3.adjust(command);
    });
    let status = pull(&server, url).unwrap();
    assert_eq!(status.state, PullState::Done, "{:?}", status.error);
    assert_eq!(served(&server), 's');

    let nothing = pull(&server, "s3://larder/versions/none").unwrap();
    assert_eq!(nothing.state, PullState::Failed);
    let error = nothing.error.unwrap();
    assert!(error.message.contains("versions/none"), "{}", error.message);
    assert_eq!(served(&server), 's');
}

#[test]
fn a_push_through_a_bucket_leaves_nothing_in_it() {
    let Some(s3) = S3::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    let server = spawn_server_with(&temp.path().join("data"), |command| {
        s3.adjust(command);
    });
    let input = write_csv(temp.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let mut push = larder();
    push.arg("push")
        .arg(&input)
        .args(["--store", "s", "--key", "key", "--value", "value"]);
    push.args(["--via", "s3://larder/staging", "--server", &server.http]);
    succeed(s3.adjust(&mut push));
    assert_eq!(
        run_ok(["store", "get", "s", "k", "--server", &server.http]),
        "v\n"
    );
    let (_, left) = s3.request("GET", "/larder?list-type=2");
    assert!(left.contains("<KeyCount>0<"), "{left}");
}

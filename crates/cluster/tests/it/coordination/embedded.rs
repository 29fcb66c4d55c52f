//! The file of a single node: the changes that survive a process, and the files that are rejected.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use larder_cluster::coordination::{
    Coordination, Embedded, Error, Keys, LeaseId, Outcome, Revision, Session, Writer, boot_ms,
};

fn open(folder: &Path) -> Arc<dyn Coordination> {
    Arc::new(Embedded::open(folder).expect("it opens"))
}

fn refused(folder: &Path) -> String {
    match Embedded::open(folder) {
        Err(Error::Refused(why)) => why,
        other => panic!("it is refused: {other:?}"),
    }
}

#[tokio::test]
async fn changes_survive_a_restart_and_keys_bound_to_leases_do_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = open(folder.path());
    let (lease, _) = service.grant(5).await.expect("granted");
    let mut writer = Writer::new("a", lease.0);
    let change = writer.change().if_unchanged("map", Revision(0));
    let change = change
        .put("map", r#"{"epoch":1}"#)
        .put_bound("nodes/a", vec![0xff], Some(lease));
    let first = service.change(&change).await.expect("an answer");
    drop(service);

    let service = open(folder.path());
    let all = service
        .read(&Keys::with_prefix(""))
        .await
        .expect("an answer");
    let keys: Vec<&str> = all.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["map", "marks/a"]);
    assert_eq!(&all.entries[0].value[..], br#"{"epoch":1}"#);
    assert!(
        all.revision > all.entries[0].modified,
        "the end of the lease was a revision"
    );
    // The reply to the change was lost with the process. The retry returns the same result.
    let (second, _) = service.grant(5).await.expect("granted");
    assert_ne!(
        second, lease,
        "a writer named after its lease is another one"
    );
    let unbound = writer.change();
    let again = larder_cluster::coordination::Change {
        mark: change.mark,
        ..unbound
    };
    let again = again.if_unchanged("map", Revision(0)).put("map", "x");
    assert_eq!(service.change(&again).await, Ok(first));
}

#[tokio::test]
async fn the_lease_never_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let session = Session::begin(open(folder.path()), 1)
        .await
        .expect("granted");
    let in_ten_years = boot_ms() + 10 * 365 * 86_400_000;
    assert!(session.lease_handle().is_certainly_held(in_ten_years));
    let held = session.lease_handle();
    session.end().await.expect("an answer");
    assert!(!held.is_certainly_held(boot_ms()));
}

#[test]
fn a_second_process_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = Embedded::open(folder.path()).expect("it opens");
    let why = refused(folder.path());
    assert!(
        why.contains("another larder process uses this data folder"),
        "{why}"
    );
    drop(first);
    Embedded::open(folder.path()).expect("it opens again");
}

#[tokio::test]
async fn a_failed_write_is_reported_as_not_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = open(folder.path());
    let mut writer = Writer::new("a", 1);
    let change = writer
        .change()
        .if_unchanged("map", Revision(0))
        .put("map", "1");
    // A folder blocks the path of the file to write.
    fs::create_dir(folder.path().join("cluster.json.new")).expect("a folder");
    assert!(matches!(
        service.change(&change).await,
        Err(Error::NotDone(_))
    ));
    assert_eq!(
        service
            .read(&Keys::one("map"))
            .await
            .expect("an answer")
            .entries,
        []
    );
    fs::remove_dir(folder.path().join("cluster.json.new")).expect("it goes");
    assert_eq!(
        service.change(&change).await,
        Ok(Outcome::Done(Revision(1)))
    );
}

#[tokio::test]
async fn a_partially_written_file_is_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = open(folder.path());
    let mut writer = Writer::new("a", 1);
    let change = writer
        .change()
        .if_unchanged("map", Revision(0))
        .put("map", "1");
    service.change(&change).await.expect("an answer");
    drop(service);
    fs::write(folder.path().join("cluster.json.new"), "{\"format\"").expect("half a file");
    let map = open(folder.path())
        .read(&Keys::one("map"))
        .await
        .expect("an answer");
    assert_eq!(map.entries[0].modified, Revision(1));
}

#[test]
fn an_unreadable_file_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.json");
    fs::write(&file, "{").expect("written");
    assert!(refused(folder.path()).contains("cluster.json cannot be read: EOF"));
    fs::write(
        &file,
        r#"{"format":2,"revision":0,"last_lease":0,"entries":[]}"#,
    )
    .expect("written");
    assert!(refused(folder.path()).contains("it has format 2, and this version reads format 1"));
    fs::write(
        &file,
        r#"{"format":1,"revision":3,"last_lease":0,"entries":[{"key":"a","created":1,"modified":3,"base64":"?"}]}"#,
    )
    .expect("written");
    assert!(refused(folder.path()).contains("the value of a: "));
    let _ = LeaseId(1);
}

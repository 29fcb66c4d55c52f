//! Tests of friendships other than the lattice, and of loading them.

use std::io::Write as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use larder_bg::model::population::edges;
use larder_bg::model::population::zipfian;

#[test]
fn twenty_percent_of_the_members_have_eighty_percent_of_the_friendships() {
    for (members, friends) in [(10_000, 100), (2_000, 20), (50_000, 10)] {
        let graph = zipfian::graph(members, friends, 0.8, 0.2, 3).unwrap();
        let mut degrees: Vec<usize> = (0..members).map(|it| graph.friends_of(it).len()).collect();
        degrees.sort_unstable_by(|a, b| b.cmp(a));
        let all: usize = degrees.iter().sum();
        let top: usize = degrees[..members as usize / 5].iter().sum();
        let (mean, share) = (all as f64 / f64::from(members), top as f64 / all as f64);
        assert!((share - 0.8).abs() < 0.02, "{members}: {share}");
        assert!(
            (mean / f64::from(friends) - 1.0).abs() < 0.02,
            "{members}: {mean}"
        );
        assert_eq!(
            graph,
            zipfian::graph(members, friends, 0.8, 0.2, 3).unwrap()
        );
    }
    let error = zipfian::graph(100, 90, 0.8, 0.2, 3).unwrap_err();
    assert!(
        error.contains("a graph of 100 members with 90 friends"),
        "{error}"
    );
}

fn file(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn plain_and_compressed_graph_files_are_read_and_renumbered() {
    let folder = tempfile::tempdir().unwrap();
    let text = b"# a comment\n1000 3\n3\t70\n70,3\n% another\n\n70 70\n9000000000 1000\n";
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(text).unwrap();
    for bytes in [text.to_vec(), packer.finish().unwrap()] {
        let graph = edges::read(&file(&folder, "edges", &bytes)).unwrap();
        assert_eq!((graph.members(), graph.friendships()), (4, 3));
        assert_eq!(graph.friends_of(0), [1, 2]);
        assert_eq!(graph.friends_of(3), [2]);
    }
    let error = |text: &[u8]| edges::read(&file(&folder, "bad", text)).unwrap_err();
    assert!(error(b"1 2\n3 x\n").contains("line 2 does not contain two numbers: 3 x"));
    assert!(error(b"# nothing\n").contains("the file contains no friendships"));
    assert!(
        edges::read(&folder.path().join("nosuch"))
            .unwrap_err()
            .contains("--edges")
    );
}

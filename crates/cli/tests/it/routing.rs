//! The client that finds its way among nodes, against a server that is a cluster of one, and one that is none.

use larder_client::{ClusterClient, Reply};

use crate::support::{run_ok, spawn_server_with, write_csv};

#[test]
fn a_client_of_a_cluster_reads_stores_and_writes_rows() {
    let folder = tempfile::tempdir().unwrap();
    let rows = (0..500).map(|n| (n.to_string(), format!("value-{n}")));
    let input = write_csv(folder.path(), "rows.csv", rows);
    for mode in ["one", "off"] {
        let data = folder.path().join(mode);
        let server = spawn_server_with(&data, |command| {
            command.env("LARDER_CLUSTER_MODE", mode);
        });
        let input = input.to_str().unwrap();
        let push = [
            "push", input, "--store", "s", "--key", "key", "--value", "value",
        ];
        run_ok(push.into_iter().chain(["--server", &server.http]));

        let client = ClusterClient::new([server.resp.clone()]);
        assert_eq!(client.get("s:7").unwrap().as_deref(), Some(&b"value-7"[..]));
        let keys: Vec<String> = (490..510).map(|n| format!("s:{n}")).collect();
        let values = client.mget(&keys).unwrap();
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(at, value)| value.is_some() == (at < 10))
        );
        for n in 0..50 {
            let key = format!("post|user{n}|1");
            client.command(&[b"SET", key.as_bytes(), b"hello"]).unwrap();
            assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"hello"[..]));
            let own = client.command(&[b"CLUSTER", b"KEYSLOT", format!("user{n}").as_bytes()]);
            if mode == "one" {
                let slot = i64::from(client.slot_of(&key).unwrap());
                assert_eq!(
                    own.unwrap(),
                    Reply::Integer(slot),
                    "a row goes by its leading column"
                );
            }
        }
        let range = client
            .command(&[b"RANGE", b"post|", b"post}", b"KEYSONLY"])
            .unwrap();
        assert!(matches!(range, Reply::Array(rows) if rows.len() == 50));
        let nodes = client.nodes().unwrap();
        assert_eq!((nodes.len(), nodes[0].slots), (1, 16_384));
        assert_eq!(client.counts().redirections, 0);
    }
}

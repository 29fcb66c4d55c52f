//! Tests the cluster client with nodes that are slow, hang, reject requests, or have moved.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use larder_client::{ClusterClient, ClusterOptions, Error, Reply};
use larder_types::{Random, SLOTS, slot_of};

use super::fakes::{Act, Fakes, array, bulk, encode_reply};
use super::free_address;

/// Computes the slot bit by bit, as in Redis Cluster's specification.
fn slot_by_definition(key: &[u8]) -> u16 {
    let open = key.iter().position(|&byte| byte == b'{');
    let tag = open.and_then(|open| {
        let length = key[open + 1..].iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &key[open + 1..open + 1 + length])
    });
    let mut crc = 0_u16;
    for &byte in tag.unwrap_or(key) {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = (crc << 1) ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 };
        }
    }
    crc % SLOTS
}

#[test]
fn every_key_is_sent_to_its_owner() {
    let fakes = Fakes::start(3, &[], |_, _| None);
    let (client, mut random) = (fakes.client(), Random::new(3));
    for number in 0..300 {
        let name: String = (0..random.below(12))
            .filter_map(|_| random.choose(&['a', 'é', '{', '}', '7', ' ']))
            .collect();
        let key = format!("s:{name}{number}");
        let slot = slot_by_definition(key.as_bytes());
        assert_eq!(client.slot_of(&key).unwrap(), slot, "{key}");
        client.command(&[b"GET", key.as_bytes()]).unwrap();
        let owner = fakes.state().having[usize::from(slot)][0];
        assert_eq!(
            fakes.count_requests(owner, &format!("GET {key}")),
            1,
            "{key}"
        );
        let row = format!("t|{name}|{number}");
        let column = name.split(['|', ':']).next().unwrap();
        assert_eq!(
            client.slot_of(&row).unwrap(),
            slot_by_definition(column.as_bytes()),
            "{row}"
        );
    }
    let counts = client.counts();
    assert_eq!(
        (counts.requests, counts.redirections, counts.topologies),
        (300, 0, 1)
    );
    let nodes = client.nodes().unwrap();
    assert_eq!(
        nodes.iter().map(|node| node.slots).sum::<u32>(),
        u32::from(SLOTS)
    );
    assert!(nodes.iter().all(|node| !node.is_excluded));
}

#[test]
fn a_server_without_a_cluster_has_every_slot() {
    let fakes = Fakes::start(1, &[], |_, parts| {
        (parts[0] == "CLUSTER")
            .then(|| Act::Say("-ERR This instance has cluster support disabled\r\n".to_owned()))
    });
    let client = fakes.client();
    assert_eq!(client.get("s:1").unwrap(), None);
    assert_eq!(
        client.command(&[b"PING"]).unwrap(),
        Reply::Simple("PONG".into())
    );
    assert_eq!(client.nodes().unwrap()[0].slots, u32::from(SLOTS));
}

#[test]
fn a_moved_slot_is_followed_and_remembered() {
    let fakes = Fakes::start(3, &[], |_, _| None);
    let client = fakes.client();
    let key = fakes.key_of(0, "s:");
    client.get(&key).unwrap();
    fakes.state().having[usize::from(slot_of(key.as_bytes()))] = vec![2];
    for _ in 0..3 {
        assert_eq!(client.get(&key).unwrap(), None);
    }
    assert_eq!(client.counts().redirections, 1);
    assert_eq!(fakes.count_requests(2, &format!("GET {key}")), 3);
}

#[test]
fn ask_is_followed_once_and_with_asking() {
    // A node of another cluster, which does not have the slot yet: it accepts the row only after `ASKING`.
    let target = Fakes::start(2, &[], |_, _| None);
    let key = target.key_of(0, "s:");
    let (address, slot) = (target.addresses[1].clone(), slot_of(key.as_bytes()));
    let fakes = Fakes::start(2, &[], move |_, parts| {
        let passed_on = parts[0] == "SET" && parts[2] == "1";
        passed_on.then(|| Act::Say(format!("-ASK {slot} {address}\r\n")))
    });
    let client = fakes.client();
    client.command(&[b"SET", key.as_bytes(), b"1"]).unwrap();
    assert_eq!(target.count_requests(1, &format!("SET {key} 1")), 1);
    assert_eq!(client.counts().redirections, 1);
    client.command(&[b"SET", key.as_bytes(), b"2"]).unwrap();
    assert_eq!(
        fakes.count_requests(0, &format!("SET {key} 2")),
        1,
        "the slot has not moved"
    );
}

#[test]
fn a_write_to_an_unserved_slot_waits_and_is_executed_once() {
    let refusals = AtomicUsize::new(0);
    let fakes = Fakes::start(2, &[], move |_, parts| match &parts[0][..] {
        "INCR" => match refusals.fetch_add(1, Ordering::SeqCst) {
            0 | 2 => encode_reply("-CLUSTERDOWN Hash slot not served\r\n"),
            1 => encode_reply("-TRYAGAIN Multiple keys request during rehashing of slot\r\n"),
            _ => None,
        },
        _ => None,
    });
    let client = fakes.client();
    let key = fakes.key_of(1, "s:");
    assert_eq!(
        client.command(&[b"INCR", key.as_bytes()]).unwrap(),
        Reply::Integer(1)
    );
    assert_eq!(
        fakes.count_requests(0, &format!("INCR {key}"))
            + fakes.count_requests(1, &format!("INCR {key}")),
        4
    );
}

#[test]
fn a_cluster_that_stays_down_is_reported_with_its_error() {
    let fakes = Fakes::start(2, &[], |_, parts| match &parts[0][..] {
        "GET" | "SET" => encode_reply("-CLUSTERDOWN The cluster is down\r\n"),
        _ => None,
    });
    let client = fakes.client_with(ClusterOptions {
        timeout: Duration::from_millis(200),
        ..Fakes::options()
    });
    for command in [&[&b"GET"[..], b"s:1"][..], &[b"SET", b"s:1", b"x"]] {
        let error = client.command(command).unwrap_err();
        let Error::Refused { code, retry, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((code.as_str(), *retry), ("CLUSTERDOWN", true));
    }
}

#[test]
fn a_read_from_a_lost_node_is_retried_on_a_replica_and_the_node_is_excluded() {
    let fakes = Fakes::start(3, &[0], |_, _| None);
    let client = fakes.client();
    let key = fakes.key_of(0, "s:");
    for _ in 0..20 {
        assert_eq!(client.get(&key).unwrap(), None);
    }
    assert_eq!(fakes.count_requests(1, &format!("GET {key}")), 20);
    let nodes = client.nodes().unwrap();
    let gone = nodes
        .iter()
        .find(|node| node.address == fakes.addresses[0])
        .unwrap();
    assert!(gone.is_excluded);
    assert!(
        client.counts().retries < 20,
        "an excluded node is not contacted each time"
    );
}

#[test]
fn a_write_whose_owner_cannot_be_reached_goes_to_another_node_once() {
    // Any larder node forwards it; these nodes report that they have executed it.
    let fakes = Fakes::start(3, &[0], |_, parts| match &parts[0][..] {
        "INCR" => encode_reply(":1\r\n"),
        _ => None,
    });
    let client = fakes.client();
    let key = fakes.key_of(0, "s:");
    assert_eq!(
        client.command(&[b"INCR", key.as_bytes()]).unwrap(),
        Reply::Integer(1)
    );
    let counts = [1, 2].map(|node| fakes.count_requests(node, &format!("INCR {key}")));
    assert_eq!(counts.iter().sum::<usize>(), 1);
}

#[test]
fn a_write_without_a_reply_is_unknown_and_not_repeated() {
    for act in [|| Act::Close, || Act::Hang] {
        let fakes = Fakes::start(3, &[], move |_, parts| (parts[0] == "INCR").then(act));
        let client = fakes.client_with(ClusterOptions {
            timeout: Duration::from_millis(300),
            ..Fakes::options()
        });
        let key = fakes.key_of(1, "s:");
        let error = client.command(&[b"INCR", key.as_bytes()]).unwrap_err();
        assert!(
            matches!(&error, Error::Unknown { address, .. } if *address == fakes.addresses[1]),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains("the write may have been executed"),
            "{error}"
        );
        let count: usize = (0..3)
            .map(|node| fakes.count_requests(node, &format!("INCR {key}")))
            .sum();
        assert_eq!(count, 1);
    }
}

#[test]
fn an_unreachable_cluster_is_an_error_that_names_the_nodes() {
    let client = ClusterClient::new([free_address()]);
    assert!(matches!(client.get("s:1"), Err(Error::NoServer { .. })));
    let fakes = Fakes::start(2, &[], |_, parts| (parts[0] == "GET").then_some(Act::Close));
    let client = fakes.client_with(ClusterOptions {
        timeout: Duration::from_millis(200),
        ..Fakes::options()
    });
    let error = client.get("s:1").unwrap_err().to_string();
    let slot = slot_of(b"s:1");
    assert!(
        error.starts_with(&format!("no node of the cluster answers for slot {slot}: ")),
        "{error}"
    );
    assert!(
        error.contains("closed the connection before it answered"),
        "{error}"
    );
}

/// Replies to a hundred reads, and then hangs.
fn start_silent_cluster(of: usize) -> impl Fn(usize, &[String]) -> Option<Act> + Send + Sync {
    let answered = AtomicUsize::new(0);
    move |node, parts| {
        let is_silent =
            node == of && parts[0] == "GET" && answered.fetch_add(1, Ordering::SeqCst) >= 100;
        is_silent.then_some(Act::Hang)
    }
}

#[test]
fn a_slow_read_is_hedged_within_the_budget() {
    let fakes = Fakes::start(2, &[], start_silent_cluster(0));
    let client = fakes.client();
    let key = fakes.key_of(0, "s:");
    for _ in 0..150 {
        assert_eq!(client.get(&key).unwrap(), None);
    }
    let counts = client.counts();
    assert!(counts.hedges_won >= 1, "{counts:?}");
    // 5 of 100 reads; hedges of probes are not counted.
    assert!(counts.hedges <= 15, "{counts:?}");
    let silent = fakes.count_requests(0, &format!("GET {key}")) - 100;
    assert!(
        (1..40).contains(&silent),
        "the node is excluded after some reads: {silent}"
    );
}

#[test]
fn writes_and_reads_without_a_budget_are_not_hedged() {
    let fakes = Fakes::start(2, &[], start_silent_cluster(0));
    let client = fakes.client_with(ClusterOptions {
        hedge_percent: 0,
        attempt_timeout: Duration::from_millis(100),
        ..Fakes::options()
    });
    let key = fakes.key_of(0, "s:");
    for _ in 0..110 {
        assert_eq!(client.get(&key).unwrap(), None);
    }
    assert_eq!(client.counts().hedges, 0);
    assert!(
        client.counts().retries >= 1,
        "the read is retried on the next node after the timeout"
    );
    for _ in 0..200 {
        client.command(&[b"INCR", key.as_bytes()]).unwrap();
    }
    assert_eq!(client.counts().hedges, 0);
}

#[test]
fn a_node_that_returns_is_used_again() {
    let closes = Arc::new(AtomicUsize::new(0));
    let left = closes.clone();
    let fakes = Fakes::start(2, &[], move |node, parts| {
        let is_ill = node == 0 && parts[0] == "GET" && left.load(Ordering::SeqCst) > 0;
        is_ill.then(|| {
            left.fetch_sub(1, Ordering::SeqCst);
            Act::Close
        })
    });
    let client = fakes.client();
    let key = fakes.key_of(0, "s:");
    client.get(&key).unwrap();
    // With the open connection, and with a new one.
    closes.store(3, Ordering::SeqCst);
    client.get(&key).unwrap();
    assert!(client.nodes().unwrap().iter().any(|node| node.is_excluded));
    let command = format!("GET {key}");
    // It counts as healthy again after a reply, slightly after it received the request.
    let is_well = || client.nodes().unwrap().iter().all(|it| !it.is_excluded);
    while closes.load(Ordering::SeqCst) > 0 || !is_well() {
        client.get(&key).unwrap();
    }
    // Once before, three failures, and once since.
    assert!(fakes.count_requests(0, &command) >= 5);
}

#[test]
fn records_of_stores_are_read_in_the_callers_zone_and_rows_at_their_owner() {
    let fakes = Fakes::start(3, &[], |_, _| None);
    let zones = fakes.addresses.iter().zip(["west", "east", "east"]);
    let client = fakes.client_with(ClusterOptions {
        zone: Some("east".to_owned()),
        zones: zones
            .map(|(node, zone)| (node.clone(), zone.to_owned()))
            .collect(),
        ..Fakes::options()
    });
    let key = fakes.key_of(0, "s:");
    client.get(&key).unwrap();
    assert_eq!(
        fakes.count_requests(1, &format!("GET {key}")),
        1,
        "its copy is near"
    );
    let key = fakes.key_of(2, "s:");
    client.get(&key).unwrap();
    assert_eq!(
        fakes.count_requests(2, &format!("GET {key}")),
        1,
        "its copy is far"
    );
    let user = fakes.key_of(0, "");
    let row = format!("t|{user}|1");
    client.get(&row).unwrap();
    assert_eq!(fakes.count_requests(0, &format!("GET {row}")), 1);
}

#[test]
fn several_keys_are_requested_from_all_their_nodes_concurrently() {
    // Each node replies only after all three have received a request.
    let all = Barrier::new(3);
    let fakes = Fakes::start(3, &[], move |_, parts| {
        if parts[0] == "MGET" {
            all.wait();
        }
        None
    });
    let client = fakes.client();
    let keys: Vec<String> = (0..60).map(|number| format!("t|{number}|x")).collect();
    for key in keys.iter().step_by(2) {
        client
            .command(&[b"SET", key.as_bytes(), key.as_bytes()])
            .unwrap();
    }
    let values = client.mget(&keys).unwrap();
    for (at, (key, value)) in keys.iter().zip(values).enumerate() {
        let expected = (at % 2 == 0).then(|| key.clone().into_bytes());
        assert_eq!(value, expected, "{key}");
    }
    assert_eq!(client.counts().requests, 33, "a request for each node");
}

#[test]
fn moved_keys_of_a_multi_key_read_are_retried() {
    let fakes = Fakes::start(3, &[], |_, _| None);
    let client = fakes.client();
    let keys: Vec<String> = (0..30).map(|number| format!("s:{number}")).collect();
    client.mget(&keys).unwrap();
    for key in &keys {
        let mut state = fakes.state();
        state.rows.insert(key.clone(), key.clone());
        let slot = usize::from(slot_of(key.as_bytes()));
        state.having[slot] = vec![(state.having[slot][0] + 1) % 3];
    }
    let values = client.mget(&keys).unwrap();
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.as_deref(), Some(key.as_bytes()));
    }
}

#[test]
fn a_partial_reply_is_an_error_or_reported_per_key() {
    let fakes = Fakes::start(3, &[], |node, parts| match &parts[0][..] {
        "MGET" | "GET" if node == 2 => encode_reply("-ERR store s: block 7 is damaged\r\n"),
        _ => None,
    });
    let client = fakes.client();
    let keys: Vec<String> = (0..30).map(|number| format!("s:{number}")).collect();
    let error = client.mget(&keys).unwrap_err();
    assert_eq!(error.to_string(), "ERR store s: block 7 is damaged");
    for (key, value) in keys.iter().zip(client.mget_each(&keys).unwrap()) {
        let owner = fakes.state().having[usize::from(slot_of(key.as_bytes()))][0];
        assert_eq!(value.is_err(), owner == 2, "{key}");
    }
}

#[test]
fn records_of_one_store_come_from_one_version() {
    // Every node replies from its own version; node 1 swaps later than the others.
    let requests = AtomicUsize::new(0);
    let fakes = Fakes::start(3, &[], move |node, parts| {
        let turn = requests.fetch_add(usize::from(node == 1), Ordering::SeqCst);
        let version = if node == 1 && turn < 10 { 4 } else { 5 };
        match &parts[0][..] {
            "STORE.VERSION" => encode_reply(&format!(":{version}\r\n")),
            "MGET" => encode_reply(&array(
                parts[1..].iter().map(|_| bulk(&version.to_string())),
            )),
            _ => None,
        }
    });
    let client = fakes.client();
    let keys: Vec<String> = (0..30).map(|number| format!("s:{number}")).collect();
    let values = client.mget(&keys).unwrap();
    assert!(
        values.iter().all(|value| value.as_deref() == Some(b"5")),
        "{values:?}"
    );
    assert!(client.counts().requests > 3, "the read was retried");
}

#[test]
fn versions_that_never_agree_are_an_error() {
    let fakes = Fakes::start(2, &[], |node, parts| match &parts[0][..] {
        "STORE.VERSION" => encode_reply(&format!(":{node}\r\n")),
        _ => None,
    });
    let keys: Vec<String> = (0..30).map(|number| format!("s:{number}")).collect();
    let error = fakes.client().mget(&keys).unwrap_err();
    assert!(
        matches!(&error, Error::SeveralVersions { store } if store == "s"),
        "{error}"
    );
}

#[test]
fn the_map_of_an_isolated_node_is_not_used() {
    let fakes = Fakes::start(2, &[], |_, _| None);
    let client = fakes.client();
    let key = fakes.key_of(0, "s:");
    let slot = usize::from(slot_of(key.as_bytes()));
    fakes.state().epoch = 7;
    client.refresh().unwrap();
    {
        // All nodes return an outdated topology.
        let mut state = fakes.state();
        state.epoch = 6;
        state.having[slot] = vec![1];
    }
    client.refresh().unwrap();
    assert_eq!(client.counts().topologies, 2);
    fakes.state().having[slot] = vec![0];
    client.get(&key).unwrap();
    assert_eq!(fakes.count_requests(0, &format!("GET {key}")), 1);
}

#[test]
fn a_connection_of_the_callers_own_is_needed_for_transactions() {
    let client = ClusterClient::new(["127.0.0.1:1"]);
    let fakes = Fakes::start(1, &[], |_, _| None);
    let error = fakes.client().command(&[b"multi"]).unwrap_err();
    assert!(
        matches!(&error, Error::BoundToConnection { command } if command == "MULTI"),
        "{error}"
    );
    assert!(client.get("s:1").is_err());
}

#[test]
fn constantly_moving_slots_lose_and_repeat_nothing() {
    let fakes = Fakes::start(4, &[], |_, _| None);
    let clients = [fakes.client(), fakes.client()];
    let mut random = Random::new(11);
    let mut sums = [0_i64; 20];
    for _ in 0..600 {
        let number = random.index(sums.len());
        let key = format!("t|{number}|n");
        let client = &clients[random.index(2)];
        if random.below(3) == 0 {
            let mut state = fakes.state();
            let slot = usize::from(state.slot(&key));
            state.having[slot] = vec![random.index(4), random.index(4)];
            state.epoch += 1;
        }
        match random.below(3) {
            0 => {
                let expected = (sums[number] > 0).then(|| sums[number].to_string().into_bytes());
                assert_eq!(client.get(&key).unwrap(), expected);
            }
            1 => {
                let keys: Vec<String> = (0..sums.len()).map(|n| format!("t|{n}|n")).collect();
                let values = client.mget(&keys).unwrap();
                let expected = sums.map(|sum| (sum > 0).then(|| sum.to_string().into_bytes()));
                assert_eq!(values, expected);
            }
            _ => {
                sums[number] += 1;
                assert_eq!(
                    client.command(&[b"INCR", key.as_bytes()]).unwrap(),
                    Reply::Integer(sums[number])
                );
            }
        }
    }
    assert!(clients[0].counts().redirections > 10);
}

#[test]
fn a_pipeline_goes_to_the_owners_and_on_where_slots_have_moved() {
    let fakes = Fakes::start(3, &[], |_, _| None);
    let client = fakes.client();
    let words: Vec<[String; 3]> = (0..90)
        .map(|number| ["SET".to_owned(), format!("s:{number}"), number.to_string()])
        .collect();
    let run = || {
        let commands: Vec<Vec<&[u8]>> = words
            .iter()
            .map(|parts| parts.iter().map(|part| part.as_bytes()).collect())
            .collect();
        client.pipeline(&commands).unwrap()
    };
    assert!(
        run()
            .iter()
            .all(|reply| *reply == Ok(Reply::Simple("OK".into())))
    );
    assert_eq!(
        client.counts().redirections,
        0,
        "each command is sent to its owner"
    );
    // Node 1 now has everything that node 0 had, and the client has not been notified.
    for having in &mut fakes.state().having {
        if having[0] == 0 {
            *having = vec![1, 2];
        }
    }
    assert!(
        run()
            .iter()
            .all(|reply| *reply == Ok(Reply::Simple("OK".into())))
    );
    for number in 0..90 {
        let key = format!("s:{number}");
        let value = client.get(&key).unwrap().unwrap();
        assert_eq!(value, number.to_string().into_bytes(), "{key}");
    }
    // The rejection of one command does not affect the others.
    let mixed = client
        .pipeline(&[vec![b"NONSENSE"], vec![b"GET", b"s:7"], vec![b"MULTI"]])
        .unwrap();
    assert!(matches!(&mixed[0], Err(Error::Refused { .. })), "{mixed:?}");
    assert_eq!(mixed[1], Ok(Reply::Bulk(b"7".to_vec())));
    assert!(matches!(&mixed[2], Err(Error::BoundToConnection { .. })));
}

//! A real etcd with three members under faults: killed, stopped, disconnected, compacted, with lost replies.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use larder_cluster::coordination::{
    Change, Coordination, Error, Etcd, EtcdConfig, Follower, Freshness, Keys, LeaseId, Outcome,
    Request, Response, Revision, Session, WatchItem, Writer, boot_ms, leader, put_candidate,
};
use larder_testing::etcd::Etcd as Server;
use larder_testing::is_enabled;
use larder_testing::proxy::Proxy;
use larder_types::Random;

use super::{client, with_timeout};

/// A comparison interval so short that lost events are detected soon.
const OFTEN: Duration = Duration::from_millis(100);
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

fn shared(etcd: Etcd) -> Arc<dyn Coordination> {
    Arc::new(etcd)
}

/// Connects to member 0, only through a proxy.
fn through(proxy: &Proxy, prefix: &str) -> Arc<dyn Coordination> {
    shared(client(vec![format!("http://{}", proxy.address())], prefix))
}

/// Retries a change until its outcome is known.
async fn settled(service: &Arc<dyn Coordination>, change: &Change) -> Outcome {
    loop {
        match service.change(change).await {
            Ok(outcome) => return outcome,
            Err(Error::NotDone(_) | Error::Unknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Increments a counter, and returns the revision of the change.
async fn count(service: &Arc<dyn Coordination>, writer: &mut Writer) -> Revision {
    loop {
        let Ok(before) = service.read(&Keys::one("count")).await else {
            continue;
        };
        let now = before.entries.first();
        let value = now.map_or(0, |entry| number(&entry.value));
        let at = now.map_or(Revision(0), |entry| entry.modified);
        let change = writer
            .change()
            .if_unchanged("count", at)
            .put("count", (value + 1).to_string());
        if let Outcome::Done(revision) = settled(service, &change).await {
            return revision;
        }
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text)
        .expect("text")
        .parse()
        .expect("a number")
}

async fn counted(service: &Arc<dyn Coordination>) -> u64 {
    let snapshot = service.read(&Keys::one("count")).await.expect("an answer");
    number(&snapshot.entries[0].value)
}

#[tokio::test]
async fn a_leader_killed_over_and_over_loses_no_change_and_makes_none_twice() {
    let Some(mut etcd) = Server::start(3) else {
        return;
    };
    kills(&mut etcd, 2).await;
}

#[tokio::test]
async fn leaders_of_etcds_own_pace_are_killed_for_long() {
    if !is_enabled("LARDER_SLOW_TESTS", "kills thirty leaders of etcd") {
        return;
    }
    let Some(mut etcd) =
        Server::start_with(3, &["--heartbeat-interval=100", "--election-timeout=1000"])
    else {
        return;
    };
    let mut waits_ms = kills(&mut etcd, 30).await;
    waits_ms.sort_unstable();
    println!("from a leader's death to the next change, in ms: {waits_ms:?}");
}

/// Kills leaders, and changes something after each. Returns how long the first change took.
async fn kills(etcd: &mut Server, kills: usize) -> Vec<u64> {
    let service = shared(client(etcd.endpoints(), "kills"));
    let mut follower = Follower::new(service.clone(), Keys::one("count"), NEVER);
    let mut writer = Writer::new("a", 1);
    let mut done = with_timeout(count(&service, &mut writer)).await;
    with_timeout(follower.wait_until(|_| true)).await;
    let mut waits_ms = Vec::new();
    for _ in 0..kills {
        let leader = etcd.leader();
        etcd.kill(leader);
        let killed_at_ms = boot_ms();
        for at in 0..5 {
            done = with_timeout(count(&service, &mut writer)).await;
            if at == 0 {
                waits_ms.push(boot_ms() - killed_at_ms);
            }
        }
        etcd.start_all().expect("it starts again");
    }
    assert_eq!(with_timeout(counted(&service)).await, 1 + 5 * kills as u64);
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    let own = follower.mirror().get("count").expect("it is there");
    assert_eq!(number(&own.value), 1 + 5 * kills as u64);
    waits_ms
}

#[tokio::test]
async fn service_resumes_after_all_members_were_killed() {
    let Some(mut etcd) = Server::start(3) else {
        return;
    };
    let service = shared(client(etcd.endpoints(), "all"));
    let mut writer = Writer::new("a", 1);
    let mut session = with_timeout(Session::begin(service.clone(), 60))
        .await
        .expect("granted");
    let bound = writer.change().if_unchanged("nodes/a", Revision(0));
    let bound = bound.put_bound("nodes/a", "x", Some(session.id()));
    with_timeout(settled(&service, &bound)).await;
    let mut follower = Follower::new(service.clone(), Keys::with_prefix(""), NEVER);
    let done = with_timeout(count(&service, &mut writer)).await;
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    let before = session.lease_handle().until_ms();
    for member in 0..3 {
        etcd.kill(member);
    }
    let waiting = {
        let service = service.clone();
        tokio::spawn(async move { count(&service, &mut writer).await })
    };
    etcd.start_all().expect("they start again");
    let done = with_timeout(waiting).await.expect("it is done");
    assert_eq!(with_timeout(counted(&service)).await, 2);
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    assert!(
        follower.mirror().get("nodes/a").is_some(),
        "the lease lasts"
    );
    // Renewed explicitly, because the renewal is not due yet.
    assert!(
        with_timeout(service.keep_alive(session.id()))
            .await
            .expect("an answer")
            .is_some()
    );
    assert!(session.lease_handle().until_ms() >= before);
    let running = tokio::time::timeout(Duration::ZERO, session.run()).await;
    assert!(running.is_err(), "it goes on");
}

#[tokio::test]
async fn a_stopped_leader_is_skipped_and_its_watch_is_not_trusted() {
    let Some(etcd) = Server::start(3) else {
        return;
    };
    let stopped = etcd.leader();
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left(stopped);
    let service = shared(client(endpoints, "stopped"));
    let mut follower = Follower::new(service.clone(), Keys::one("count"), OFTEN);
    let mut writer = Writer::new("a", 1);
    let done = with_timeout(count(&service, &mut writer)).await;
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    // From here on, its connections, including the watch, stay open but are silent.
    etcd.suspend(stopped);
    let done = with_timeout(count(&service, &mut writer)).await;
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    etcd.resume(stopped);
    with_timeout(count(&service, &mut writer)).await;
    assert_eq!(with_timeout(counted(&service)).await, 3);
    with_timeout(follower.wait_until(|mirror| {
        mirror
            .get("count")
            .is_some_and(|entry| number(&entry.value) == 3)
    }))
    .await;
}

#[tokio::test]
async fn a_compaction_during_an_interrupted_watch_causes_a_complete_read() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let mut follower = Follower::new(through(&proxy, "cut"), Keys::with_prefix(""), NEVER);
    let service = shared(client(etcd.endpoints(), "cut"));
    let mut writer = Writer::new("a", 1);
    let gone = writer
        .change()
        .if_unchanged("gone", Revision(0))
        .put("gone", "x");
    let at = with_timeout(settled(&service, &gone))
        .await
        .done()
        .expect("done");
    with_timeout(follower.wait_until(|mirror| mirror.get("gone").is_some())).await;
    assert_eq!(follower.reads(), 1);
    proxy.cut();
    let delete = writer.change().if_unchanged("gone", at).delete("gone");
    with_timeout(settled(&service, &delete)).await;
    with_timeout(count(&service, &mut writer)).await;
    let done = with_timeout(count(&service, &mut writer)).await;
    etcd.compact(0, done.0);
    proxy.heal();
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    assert!(follower.reads() >= 2, "everything was read again");
    let truth = with_timeout(service.read(&Keys::with_prefix("")))
        .await
        .expect("an answer");
    assert!(follower.mirror().entries().eq(&truth.entries));
    assert!(follower.mirror().get("gone").is_none());
}

#[tokio::test]
async fn an_interrupted_watch_resumes_at_its_revision() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let mut follower = Follower::new(through(&proxy, "broken"), Keys::one("count"), NEVER);
    let service = shared(client(etcd.endpoints(), "broken"));
    let mut writer = Writer::new("a", 1);
    for _ in 0..5 {
        let done = with_timeout(count(&service, &mut writer)).await;
        with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
        proxy.break_connections();
    }
    let done = with_timeout(count(&service, &mut writer)).await;
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    assert_eq!(
        number(&follower.mirror().get("count").expect("it is there").value),
        6
    );
}

#[tokio::test]
async fn a_silent_watch_is_detected_by_revisions() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let mut follower = Follower::new(through(&proxy, "silent"), Keys::one("count"), OFTEN);
    let service = shared(client(etcd.endpoints(), "silent"));
    let mut writer = Writer::new("a", 1);
    let done = with_timeout(count(&service, &mut writer)).await;
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    // The follower is up to date: the watch starts, and then loses all packets.
    follower.next().await;
    proxy.stall();
    let before = boot_ms();
    let done = with_timeout(count(&service, &mut writer)).await;
    with_timeout(follower.wait_until(|mirror| mirror.revision() >= done)).await;
    assert!(follower.confirmed_at_ms().is_some_and(|at| at >= before));
    assert!(follower.reads() >= 2);
}

#[tokio::test]
async fn a_change_whose_reply_was_lost_is_known_to_be_done() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let service = through(&proxy, "lost");
    let mut writer = Writer::new("a", 1);
    for lost in 1..=3 {
        let before = with_timeout(service.read(&Keys::one("count")))
            .await
            .expect("an answer");
        let at = before
            .entries
            .first()
            .map_or(Revision(0), |entry| entry.modified);
        let change = writer
            .change()
            .if_unchanged("count", at)
            .put("count", lost.to_string());
        proxy.lose_replies(1);
        let outcome = with_timeout(service.change(&change))
            .await
            .expect("an answer");
        let now = with_timeout(service.read(&Keys::one("count")))
            .await
            .expect("an answer");
        assert_eq!(outcome, Outcome::Done(now.entries[0].modified));
        assert_eq!(now.revision, now.entries[0].modified, "it was made once");
        assert_eq!(proxy.replies_lost(), lost);
    }
}

#[tokio::test]
async fn a_node_cut_off_from_etcd_stops_before_another_leads_and_is_fenced_after() {
    let Some(etcd) = Server::start(3) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let (a, b) = (
        through(&proxy, "lead"),
        shared(client(etcd.endpoints(), "lead")),
    );
    let mut session = with_timeout(Session::begin(a.clone(), 2))
        .await
        .expect("granted");
    let (held, own) = (session.lease_handle(), session.id());
    let mut other = with_timeout(Session::begin(b.clone(), 2))
        .await
        .expect("granted");
    let other_id = other.id();
    let (mut writer_a, mut writer_b) = (Writer::new("a", own.0), Writer::new("b", other_id.0));
    let stand = async |service: &Arc<dyn Coordination>, change: Change| {
        settled(service, &change).await.done().expect("it stands")
    };
    let fence_a = with_timeout(stand(&a, put_candidate(writer_a.change(), own, "a"))).await;
    let fence_b = with_timeout(stand(&b, put_candidate(writer_b.change(), other_id, "b"))).await;
    let running_a = tokio::spawn(async move { session.run().await });
    let running_b = tokio::spawn(async move { other.run().await });
    let fenced = |writer: &mut Writer, lease: LeaseId, fence, at, value: &'static str| {
        let change = writer
            .change()
            .if_created_at(format!("controller/{lease}"), fence);
        change.if_unchanged("map", at).put("map", value)
    };
    let map = with_timeout(settled(
        &a,
        &fenced(&mut writer_a, own, fence_a, Revision(0), "a"),
    ))
    .await;
    let map = map.done().expect("it leads");

    let mut follower = Follower::new(b.clone(), Keys::with_prefix("controller/"), OFTEN);
    with_timeout(
        follower.wait_until(|mirror| leader(mirror).is_some_and(|leads| leads.value == "a")),
    )
    .await;
    proxy.cut();
    with_timeout(
        follower.wait_until(|mirror| leader(mirror).is_some_and(|leads| leads.value == "b")),
    )
    .await;
    assert!(
        !held.is_certainly_held(boot_ms()),
        "it ended for the holder first"
    );
    let map_b = with_timeout(settled(
        &b,
        &fenced(&mut writer_b, other_id, fence_b, map, "b"),
    ))
    .await;
    let map_b = map_b.done().expect("it leads now");

    // The previous leader is back and knows the newest map, but not that it is no longer the leader.
    proxy.heal();
    let late = fenced(&mut writer_a, own, fence_a, map_b, "late");
    assert!(matches!(
        with_timeout(settled(&a, &late)).await,
        Outcome::Conflict(_)
    ));
    let now = with_timeout(b.read(&Keys::one("map")))
        .await
        .expect("an answer");
    assert_eq!(now.entries[0].value, "b");
    with_timeout(running_a).await.expect("its session is over");
    assert!(!held.is_certainly_held(boot_ms()) && held.until_ms() == 0);
    running_b.abort();
}

#[tokio::test]
async fn without_a_quorum_only_stale_reads_are_answered() {
    let Some(mut etcd) = Server::start(3) else {
        return;
    };
    let service = shared(
        Etcd::new(EtcdConfig {
            endpoints: etcd.endpoints(),
            prefix: "/larder/any/".to_owned(),
            request_timeout: Some(Duration::from_millis(500)),
            ..EtcdConfig::default()
        })
        .expect("it can be used"),
    );
    let mut writer = Writer::new("a", 1);
    let done = with_timeout(count(&service, &mut writer)).await;
    // The remaining member has replicated it.
    let mut watch =
        shared(client(vec![etcd.endpoint(2)], "any")).watch(&Keys::one("count"), Revision(0));
    assert!(with_timeout(watch.next()).await.is_some());
    etcd.kill(0);
    etcd.kill(1);
    let keys = Keys::one("count");
    let change = writer
        .change()
        .if_unchanged("count", done)
        .put("count", "2");
    assert!(matches!(
        with_timeout(service.change(&change)).await,
        Err(Error::Unknown(_))
    ));
    assert!(with_timeout(service.read(&keys)).await.is_err());
    let freshness = Freshness::Any;
    let old = with_timeout(service.call(Request::Read { keys, freshness })).await;
    let Ok(Response::Read(old)) = old else {
        panic!("one member answers: {old:?}");
    };
    assert_eq!(old.entries[0].modified, done);
    etcd.start_all().expect("they start again");
    let now = with_timeout(settled(&service, &change))
        .await
        .done()
        .expect("once, whenever it was made");
    assert!(now > done);
    assert_eq!(with_timeout(counted(&service)).await, 2);
}

#[tokio::test]
async fn a_long_loss_of_the_quorum_ends_leases_and_loses_nothing() {
    if !is_enabled(
        "LARDER_SLOW_TESTS",
        "leaves etcd without a quorum for ten leases",
    ) {
        return;
    }
    let Some(mut etcd) = Server::start(3) else {
        return;
    };
    let service = shared(client(etcd.endpoints(), "quorum"));
    let mut writer = Writer::new("a", 1);
    let mut session = with_timeout(Session::begin(service.clone(), 2))
        .await
        .expect("granted");
    let (held, own) = (session.lease_handle(), session.id());
    let bound = writer
        .change()
        .if_unchanged("nodes/a", Revision(0))
        .put_bound("nodes/a", "x", Some(own));
    let revision = with_timeout(settled(&service, &bound))
        .await
        .done()
        .expect("done");
    let running = tokio::spawn(async move { session.run().await });
    etcd.kill(0);
    etcd.kill(1);
    let until = boot_ms() + 20_000;
    while boot_ms() < until {
        assert!(
            with_timeout(service.read(&Keys::one("nodes/a")))
                .await
                .is_err()
        );
    }
    assert!(!held.is_certainly_held(boot_ms()));
    etcd.start_all().expect("they start again");
    // Its TTL restarted with the new leader: the node holds the lease again, or learns that it has ended and its key is deleted.
    let mut watch = service.watch(&Keys::one("nodes/a"), revision);
    let is_held = async {
        while !held.is_certainly_held(boot_ms()) {
            tokio::task::yield_now().await;
        }
    };
    let ended = async { while !matches!(watch.next().await, Some(WatchItem::Events(_))) {} };
    with_timeout(async {
        tokio::select! {
            () = is_held => {}
            () = ended => {}
        }
    })
    .await;
    running.abort();
}

/// The number of requests that an idle node sends to etcd.
#[tokio::test]
async fn an_idle_node_sends_few_requests() {
    if !is_enabled("LARDER_SLOW_TESTS", "counts requests for twenty seconds") {
        return;
    }
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let counted = Arc::new(client(etcd.endpoints(), "rest"));
    let service: Arc<dyn Coordination> = counted.clone();
    let mut session = with_timeout(Session::begin(service.clone(), 5))
        .await
        .expect("granted");
    let every = Duration::from_secs(5);
    let mut map = Follower::new(service.clone(), Keys::one("map"), every);
    let mut nodes = Follower::new(service.clone(), Keys::with_prefix("nodes/"), every);
    with_timeout(async { tokio::join!(map.wait_until(|_| true), nodes.wait_until(|_| true)) })
        .await;
    let (before, began_at_ms) = (counted.requests(), boot_ms());
    let rest = async {
        tokio::join!(
            session.run(),
            map.wait_until(|_| false),
            nodes.wait_until(|_| false)
        );
    };
    let _ = tokio::time::timeout(Duration::from_secs(20), rest).await;
    let seconds = (boot_ms() - began_at_ms) as f64 / 1000.0;
    let each_second = (counted.requests() - before) as f64 / seconds;
    println!("{each_second:.2} requests a second at rest");
    assert!(each_second < 3.0);
}

/// All faults together: links that break, stall, delay and lose replies, members that are killed and stopped, revisions that are
/// compacted.
#[tokio::test]
async fn under_random_faults_each_change_is_applied_once() {
    if !is_enabled(
        "LARDER_SLOW_TESTS",
        "breaks links and members of etcd for a minute",
    ) {
        return;
    }
    for seed in 0..3 {
        break_everything(seed).await;
    }
}

async fn break_everything(seed: u64) {
    const WRITERS: u64 = 3;
    const EACH: u64 = 150;
    let Some(mut etcd) = Server::start(3) else {
        return;
    };
    let proxies: Vec<Proxy> = (0..3).map(|at| Proxy::to(etcd.address(at))).collect();
    let endpoints = || {
        proxies
            .iter()
            .map(|proxy| format!("http://{}", proxy.address()))
            .collect()
    };
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let service = shared(client(endpoints(), "broken"));
            tokio::spawn(async move {
                let mut writer = Writer::new(format!("w{number}"), seed);
                for _ in 0..EACH {
                    count(&service, &mut writer).await;
                }
            })
        })
        .collect();
    let mut follower = Follower::new(
        shared(client(endpoints(), "broken")),
        Keys::one("count"),
        OFTEN,
    );
    let mut random = Random::new(seed);
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        // The next fault follows an event.
        let _ = tokio::time::timeout(Duration::from_millis(300), follower.next()).await;
        let (at, proxy) = random
            .choose(&[0, 1, 2])
            .map(|at| (at, &proxies[at]))
            .expect("three");
        match random.below(9) {
            0 => proxy.cut(),
            1 => proxy.break_connections(),
            2 => proxy.stall(),
            3 => proxy.lose_replies(1),
            4 => proxy.delay(Duration::from_millis(random.below(150))),
            5 => {
                etcd.kill(at);
                etcd.start_all().expect("it starts again");
            }
            6 => {
                etcd.suspend(at);
                let _ = tokio::time::timeout(Duration::from_millis(500), follower.next()).await;
                etcd.resume(at);
            }
            7 if follower.mirror().revision() > Revision(0) => {
                etcd.compact(at, follower.mirror().revision().0)
            }
            _ => proxies.iter().for_each(Proxy::heal),
        }
    }
    proxies.iter().for_each(Proxy::heal);
    let service = shared(client(etcd.endpoints(), "broken"));
    assert_eq!(
        with_timeout(counted(&service)).await,
        WRITERS * EACH,
        "seed {seed}"
    );
    with_timeout(follower.wait_until(|mirror| {
        mirror
            .get("count")
            .is_some_and(|entry| number(&entry.value) == WRITERS * EACH)
    }))
    .await;
    println!(
        "seed {seed}: everything was read {} times",
        follower.reads()
    );
}

//! A real etcd with three members under faults: killed, stopped, disconnected, compacted, with lost replies.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use larder_cluster::coordination::{
    Change, Coordination, Error, Etcd, EtcdConfig, Follower, Freshness, Keys, LeaseId, Outcome,
    Request, Response, Revision, Session, Watched, Writer, boot_ms, candidacy, leader,
};
use larder_testing::etcd::Etcd as Server;
use larder_testing::is_asked_for;
use larder_testing::proxy::Proxy;
use larder_types::Random;

use super::{client, soon};

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
            .unless_changed("count", at)
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
    if !is_asked_for("LARDER_SLOW_TESTS", "kills thirty leaders of etcd") {
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
    let mut done = soon(count(&service, &mut writer)).await;
    soon(follower.until(|_| true)).await;
    let mut waits_ms = Vec::new();
    for _ in 0..kills {
        let leader = etcd.leader();
        etcd.kill(leader);
        let killed_at_ms = boot_ms();
        for at in 0..5 {
            done = soon(count(&service, &mut writer)).await;
            if at == 0 {
                waits_ms.push(boot_ms() - killed_at_ms);
            }
        }
        etcd.start_all().expect("it starts again");
    }
    assert_eq!(soon(counted(&service)).await, 1 + 5 * kills as u64);
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    let own = follower.mirror().get("count").expect("it is there");
    assert_eq!(number(&own.value), 1 + 5 * kills as u64);
    waits_ms
}

#[tokio::test]
async fn when_all_members_were_killed_all_goes_on() {
    let Some(mut etcd) = Server::start(3) else {
        return;
    };
    let service = shared(client(etcd.endpoints(), "all"));
    let mut writer = Writer::new("a", 1);
    let mut session = soon(Session::begin(service.clone(), 60))
        .await
        .expect("granted");
    let bound = writer.change().unless_changed("nodes/a", Revision(0));
    let bound = bound.put_bound("nodes/a", "x", Some(session.id()));
    soon(settled(&service, &bound)).await;
    let mut follower = Follower::new(service.clone(), Keys::below(""), NEVER);
    let done = soon(count(&service, &mut writer)).await;
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    let before = session.held().until_ms();
    for member in 0..3 {
        etcd.kill(member);
    }
    let waiting = {
        let service = service.clone();
        tokio::spawn(async move { count(&service, &mut writer).await })
    };
    etcd.start_all().expect("they start again");
    let done = soon(waiting).await.expect("it is done");
    assert_eq!(soon(counted(&service)).await, 2);
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    assert!(
        follower.mirror().get("nodes/a").is_some(),
        "the lease lasts"
    );
    // Renewed explicitly, because the renewal is not due yet.
    assert!(
        soon(service.keep_alive(session.id()))
            .await
            .expect("an answer")
            .is_some()
    );
    assert!(session.held().until_ms() >= before);
    let running = tokio::time::timeout(Duration::ZERO, session.run()).await;
    assert!(running.is_err(), "it goes on");
}

#[tokio::test]
async fn a_leader_that_is_stopped_is_passed_by_and_its_watch_is_not_believed() {
    let Some(etcd) = Server::start(3) else {
        return;
    };
    let stopped = etcd.leader();
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left(stopped);
    let service = shared(client(endpoints, "stopped"));
    let mut follower = Follower::new(service.clone(), Keys::one("count"), OFTEN);
    let mut writer = Writer::new("a", 1);
    let done = soon(count(&service, &mut writer)).await;
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    // From here on, its connections, including the watch, stay open but are silent.
    etcd.stop(stopped);
    let done = soon(count(&service, &mut writer)).await;
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    etcd.go_on(stopped);
    soon(count(&service, &mut writer)).await;
    assert_eq!(soon(counted(&service)).await, 3);
    soon(follower.until(|mirror| {
        mirror
            .get("count")
            .is_some_and(|entry| number(&entry.value) == 3)
    }))
    .await;
}

#[tokio::test]
async fn what_was_compacted_while_a_watch_was_cut_is_read_anew() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let mut follower = Follower::new(through(&proxy, "cut"), Keys::below(""), NEVER);
    let service = shared(client(etcd.endpoints(), "cut"));
    let mut writer = Writer::new("a", 1);
    let gone = writer
        .change()
        .unless_changed("gone", Revision(0))
        .put("gone", "x");
    let at = soon(settled(&service, &gone)).await.done().expect("done");
    soon(follower.until(|mirror| mirror.get("gone").is_some())).await;
    assert_eq!(follower.reads(), 1);
    proxy.cut();
    let delete = writer.change().unless_changed("gone", at).delete("gone");
    soon(settled(&service, &delete)).await;
    soon(count(&service, &mut writer)).await;
    let done = soon(count(&service, &mut writer)).await;
    etcd.compact(0, done.0);
    proxy.heal();
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    assert!(follower.reads() >= 2, "everything was read again");
    let truth = soon(service.read(&Keys::below("")))
        .await
        .expect("an answer");
    assert!(follower.mirror().entries().eq(&truth.entries));
    assert!(follower.mirror().get("gone").is_none());
}

#[tokio::test]
async fn a_watch_that_was_cut_goes_on_where_it_was() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let mut follower = Follower::new(through(&proxy, "broken"), Keys::one("count"), NEVER);
    let service = shared(client(etcd.endpoints(), "broken"));
    let mut writer = Writer::new("a", 1);
    for _ in 0..5 {
        let done = soon(count(&service, &mut writer)).await;
        soon(follower.until(|mirror| mirror.revision() >= done)).await;
        proxy.break_connections();
    }
    let done = soon(count(&service, &mut writer)).await;
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    assert_eq!(
        number(&follower.mirror().get("count").expect("it is there").value),
        6
    );
}

#[tokio::test]
async fn a_watch_that_is_silent_is_found_out_by_revisions() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let mut follower = Follower::new(through(&proxy, "silent"), Keys::one("count"), OFTEN);
    let service = shared(client(etcd.endpoints(), "silent"));
    let mut writer = Writer::new("a", 1);
    let done = soon(count(&service, &mut writer)).await;
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
    // The follower is up to date: the watch starts, and then loses all packets.
    follower.next().await;
    proxy.stall();
    let before = boot_ms();
    let done = soon(count(&service, &mut writer)).await;
    soon(follower.until(|mirror| mirror.revision() >= done)).await;
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
        let before = soon(service.read(&Keys::one("count")))
            .await
            .expect("an answer");
        let at = before
            .entries
            .first()
            .map_or(Revision(0), |entry| entry.modified);
        let change = writer
            .change()
            .unless_changed("count", at)
            .put("count", lost.to_string());
        proxy.lose_replies(1);
        let outcome = soon(service.change(&change)).await.expect("an answer");
        let now = soon(service.read(&Keys::one("count")))
            .await
            .expect("an answer");
        assert_eq!(outcome, Outcome::Done(now.entries[0].modified));
        assert_eq!(now.revision, now.entries[0].modified, "it was made once");
        assert_eq!(proxy.replies_lost(), lost);
    }
}

#[tokio::test]
async fn who_is_cut_from_etcd_knows_before_another_leads_and_can_change_nothing_after() {
    let Some(etcd) = Server::start(3) else {
        return;
    };
    let proxy = Proxy::to(etcd.address(0));
    let (a, b) = (
        through(&proxy, "lead"),
        shared(client(etcd.endpoints(), "lead")),
    );
    let mut session = soon(Session::begin(a.clone(), 2)).await.expect("granted");
    let (held, own) = (session.held(), session.id());
    let mut other = soon(Session::begin(b.clone(), 2)).await.expect("granted");
    let other_id = other.id();
    let (mut writer_a, mut writer_b) = (Writer::new("a", own.0), Writer::new("b", other_id.0));
    let stand = async |service: &Arc<dyn Coordination>, change: Change| {
        settled(service, &change).await.done().expect("it stands")
    };
    let fence_a = soon(stand(&a, candidacy(writer_a.change(), own, "a"))).await;
    let fence_b = soon(stand(&b, candidacy(writer_b.change(), other_id, "b"))).await;
    let running_a = tokio::spawn(async move { session.run().await });
    let running_b = tokio::spawn(async move { other.run().await });
    let fenced = |writer: &mut Writer, lease: LeaseId, fence, at, value: &'static str| {
        let change = writer
            .change()
            .while_since(format!("controller/{lease}"), fence);
        change.unless_changed("map", at).put("map", value)
    };
    let map = soon(settled(
        &a,
        &fenced(&mut writer_a, own, fence_a, Revision(0), "a"),
    ))
    .await;
    let map = map.done().expect("it leads");

    let mut follower = Follower::new(b.clone(), Keys::below("controller/"), OFTEN);
    soon(follower.until(|mirror| leader(mirror).is_some_and(|leads| leads.value == "a"))).await;
    proxy.cut();
    soon(follower.until(|mirror| leader(mirror).is_some_and(|leads| leads.value == "b"))).await;
    assert!(
        !held.is_held_surely(boot_ms()),
        "it ended for the holder first"
    );
    let map_b = soon(settled(
        &b,
        &fenced(&mut writer_b, other_id, fence_b, map, "b"),
    ))
    .await;
    let map_b = map_b.done().expect("it leads now");

    // The previous leader is back and knows the newest map, but not that it is no longer the leader.
    proxy.heal();
    let late = fenced(&mut writer_a, own, fence_a, map_b, "late");
    assert!(matches!(
        soon(settled(&a, &late)).await,
        Outcome::Conflict(_)
    ));
    let now = soon(b.read(&Keys::one("map"))).await.expect("an answer");
    assert_eq!(now.entries[0].value, "b");
    soon(running_a).await.expect("its session is over");
    assert!(!held.is_held_surely(boot_ms()) && held.until_ms() == 0);
    running_b.abort();
}

#[tokio::test]
async fn without_a_quorum_only_reads_of_any_age_are_answered() {
    let Some(mut etcd) = Server::start(3) else {
        return;
    };
    let service = shared(
        Etcd::new(EtcdConfig {
            endpoints: etcd.endpoints(),
            prefix: "/larder/any/".to_owned(),
            tried_for: Some(Duration::from_millis(500)),
            ..EtcdConfig::default()
        })
        .expect("it can be used"),
    );
    let mut writer = Writer::new("a", 1);
    let done = soon(count(&service, &mut writer)).await;
    // The remaining member has replicated it.
    let mut heard =
        shared(client(vec![etcd.endpoint(2)], "any")).watch(&Keys::one("count"), Revision(0));
    assert!(soon(heard.next()).await.is_some());
    etcd.kill(0);
    etcd.kill(1);
    let keys = Keys::one("count");
    let change = writer
        .change()
        .unless_changed("count", done)
        .put("count", "2");
    assert!(matches!(
        soon(service.change(&change)).await,
        Err(Error::Unknown(_))
    ));
    assert!(soon(service.read(&keys)).await.is_err());
    let freshness = Freshness::Any;
    let old = soon(service.call(Request::Read { keys, freshness })).await;
    let Ok(Response::Read(old)) = old else {
        panic!("one member answers: {old:?}");
    };
    assert_eq!(old.entries[0].modified, done);
    etcd.start_all().expect("they start again");
    let now = soon(settled(&service, &change))
        .await
        .done()
        .expect("once, whenever it was made");
    assert!(now > done);
    assert_eq!(soon(counted(&service)).await, 2);
}

#[tokio::test]
async fn without_a_quorum_for_ten_leases_nothing_is_held_and_nothing_is_lost() {
    if !is_asked_for(
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
    let mut session = soon(Session::begin(service.clone(), 2))
        .await
        .expect("granted");
    let (held, own) = (session.held(), session.id());
    let bound = writer
        .change()
        .unless_changed("nodes/a", Revision(0))
        .put_bound("nodes/a", "x", Some(own));
    let revision = soon(settled(&service, &bound)).await.done().expect("done");
    let running = tokio::spawn(async move { session.run().await });
    etcd.kill(0);
    etcd.kill(1);
    let until = boot_ms() + 20_000;
    while boot_ms() < until {
        assert!(soon(service.read(&Keys::one("nodes/a"))).await.is_err());
    }
    assert!(!held.is_held_surely(boot_ms()));
    etcd.start_all().expect("they start again");
    // Its TTL restarted with the new leader: the node holds the lease again, or learns that it has ended and its key is deleted.
    let mut heard = service.watch(&Keys::one("nodes/a"), revision);
    let is_held = async {
        while !held.is_held_surely(boot_ms()) {
            tokio::task::yield_now().await;
        }
    };
    let ended = async { while !matches!(heard.next().await, Some(Watched::Events(_))) {} };
    soon(async {
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
async fn a_node_at_rest_asks_little() {
    if !is_asked_for("LARDER_SLOW_TESTS", "counts requests for twenty seconds") {
        return;
    }
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let counted = Arc::new(client(etcd.endpoints(), "rest"));
    let service: Arc<dyn Coordination> = counted.clone();
    let mut session = soon(Session::begin(service.clone(), 5))
        .await
        .expect("granted");
    let every = Duration::from_secs(5);
    let mut map = Follower::new(service.clone(), Keys::one("map"), every);
    let mut nodes = Follower::new(service.clone(), Keys::below("nodes/"), every);
    soon(async { tokio::join!(map.until(|_| true), nodes.until(|_| true)) }).await;
    let (before, began_at_ms) = (counted.requests(), boot_ms());
    let rest = async {
        tokio::join!(session.run(), map.until(|_| false), nodes.until(|_| false));
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
async fn whatever_breaks_each_change_is_made_once() {
    if !is_asked_for(
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
                etcd.stop(at);
                let _ = tokio::time::timeout(Duration::from_millis(500), follower.next()).await;
                etcd.go_on(at);
            }
            7 if follower.mirror().revision() > Revision(0) => {
                etcd.compact(at, follower.mirror().revision().0)
            }
            _ => proxies.iter().for_each(Proxy::heal),
        }
    }
    proxies.iter().for_each(Proxy::heal);
    let service = shared(client(etcd.endpoints(), "broken"));
    assert_eq!(soon(counted(&service)).await, WRITERS * EACH, "seed {seed}");
    soon(follower.until(|mirror| {
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

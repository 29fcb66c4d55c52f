//! Tests of PostgreSQL, alone and behind memcached.

use std::sync::Arc;

use larder_bg::model::population::Population;
use larder_bg::stores::Options;
use larder_bg::stores::contract::Failure;

use crate::conformance::{conforms, open, run};
use crate::servers::{self, Database};

fn options(database: &Database, settings: &[(&str, &str)]) -> Options {
    let settings = settings.iter();
    Options {
        address: Some(database.address()),
        connections: Some(3),
        settings: settings
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

const LAYOUTS: [[(&str, &str); 2]; 4] = [
    [("layout", "basic"), ("rows", "2")],
    [("layout", "basic"), ("rows", "1")],
    [("layout", "aggregate"), ("rows", "2")],
    [("layout", "aggregate"), ("rows", "1")],
];

#[test]
fn every_layout_conforms() {
    let Some(database) = servers::database() else {
        return;
    };
    for layout in &LAYOUTS {
        conforms(&*open("postgres", &options(&database, layout)));
    }
}

#[test]
fn postgres_behind_a_cache_conforms() {
    let (Some(database), Some(cache)) = (servers::database(), servers::memcached()) else {
        return;
    };
    let at = ("memcached", &*cache.address());
    let consistencies = [
        [at, ("consistency", "lease"), ("layout", "aggregate")],
        [at, ("consistency", "invalidate"), ("rows", "1")],
        // With a TTL of zero, no entry is ever read.
        [at, ("consistency", "ttl"), ("ttl", "0ms")],
    ];
    for settings in consistencies {
        conforms(&*open("postgres+memcached", &options(&database, &settings)));
    }
}

fn small() -> Arc<Population> {
    Arc::new(Population {
        members: 40,
        friends: 6,
        invitations: 2,
        resources: 4,
        comments: 2,
        ..Population::default()
    })
}

#[test]
fn impossible_writes_are_rejected_and_change_nothing() {
    let Some(database) = servers::database() else {
        return;
    };
    for layout in &LAYOUTS {
        let store = open("postgres", &options(&database, layout));
        run(async {
            let population = small();
            store.create(&population).await.expect("created");
            let client = store.connect(population.clone()).await.expect("connected");
            client.load(0..40).await.expect("loaded");
            client.finish_load().await.expect("finished");
            let inviter = population.inviters_of(10).next().expect("two of them");
            client.invite_friend(20, 10).await.expect("invited");
            let rejections = [
                client.invite_friend(20, 10).await,
                client.accept_friend_request(10, 25).await,
                client.reject_friend_request(inviter, 10).await,
                client.thaw_friendship(10, 20).await,
                client.post_comment(3, 17, 1).await,
                client.delete_comment(3, 17, 2).await,
            ];
            for outcome in rejections {
                assert!(matches!(outcome, Err(Failure::Refused(_))), "{outcome:?}");
            }
            for (member, counts) in [(10, (6, Some(3))), (20, (6, Some(2))), (25, (6, Some(2)))] {
                let profile = client
                    .view_profile(member, member)
                    .await
                    .expect("a profile");
                assert_eq!((profile.friends, profile.invitations), counts, "{layout:?}");
            }
        });
    }
}

#[test]
fn a_cache_with_a_ttl_returns_stale_values() {
    let (Some(database), Some(cache)) = (servers::database(), servers::memcached()) else {
        return;
    };
    let settings = [
        ("memcached", &*cache.address()),
        ("consistency", "ttl"),
        ("ttl", "1000s"),
    ];
    let store = open("postgres+memcached", &options(&database, &settings));
    run(async {
        let population = small();
        store.create(&population).await.expect("created");
        let client = store.connect(population).await.expect("connected");
        client.load(0..40).await.expect("loaded");
        client.finish_load().await.expect("finished");
        let seen = client.view_comments(3, 17).await.expect("answered");
        client.post_comment(3, 17, 2).await.expect("posted");
        let later = client.view_comments(3, 17).await.expect("answered");
        assert_eq!(later, seen);
    });
}

#[test]
fn unknown_settings_are_rejected() {
    let rejection = |name: &str, value: &str| {
        let known = larder_bg::stores::find("postgres+memcached").expect("known");
        let settings = vec![(name.to_owned(), value.to_owned())];
        let opened = (known.open)(&Options {
            settings,
            ..Options::default()
        });
        opened.err().expect("refused")
    };
    assert_eq!(
        rejection("consistency", "strong"),
        "--set consistency=strong: must be lease or invalidate or ttl"
    );
    assert_eq!(rejection("rows", "3"), "--set rows=3: must be 2 or 1");
    assert_eq!(
        rejection("row", "2"),
        "--set row: postgres+memcached has no such setting"
    );
}

//! The layouts of PostgreSQL, against one that the tests start.

use std::rc::Rc;
use std::sync::Arc;

use larder_bg::population::Population;
use larder_bg::store::{Client, Failure, Post};
use larder_bg::stores::{self, Options};

use crate::servers;

fn small() -> Arc<Population> {
    Arc::new(Population {
        members: 40,
        friends: 6,
        invitations: 2,
        resources: 4,
        comments: 2,
        image_size: Some(5000),
        ..Population::default()
    })
}

async fn loaded(options: &Options, population: &Arc<Population>) -> Rc<dyn Client> {
    let open = stores::find("postgres").expect("known").open;
    let store = open(options).expect("opens");
    store.create(population).await.expect("created");
    let client = store.connect(population.clone()).await.expect("connects");
    client.load(0..25).await.expect("loads");
    client.load(20..40).await.expect("loads over what is there");
    client.finish_load().await.expect("finishes");
    client
}

#[test]
fn every_layout_answers_what_was_loaded_and_written() {
    let Some(server) = servers::postgres() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    for (layout, rows) in [
        ("basic", "2"),
        ("basic", "1"),
        ("aggregate", "2"),
        ("aggregate", "1"),
    ] {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let options = Options {
            address: Some(format!("postgres://postgres@{}/postgres", server.address())),
            connections: Some(2),
            settings: vec![setting("layout", layout), setting("rows", rows)],
        };
        runtime.block_on(tokio::task::LocalSet::new().run_until(actions(&options)));
    }
}

async fn actions(options: &Options) {
    let population = small();
    let client = loaded(options, &population).await;
    let counts = async |member: u32| {
        let profile = client.view_profile(member, member).await.expect("answered");
        assert_eq!((profile.resources, profile.wrong), (4, 0), "{options:?}");
        (profile.friends, profile.invitations.expect("one's own"))
    };
    let friends = async |member: u32| {
        let people = client.list_friends(0, member).await.expect("answered");
        assert_eq!(people.wrong, 0);
        let mut members = people.members;
        members.sort_unstable();
        members
    };
    for member in [0, 21, 39] {
        assert_eq!(counts(member).await, (6, 2));
        let mut expected: Vec<u32> = population.friends_of(member).collect();
        expected.sort_unstable();
        assert_eq!(friends(member).await, expected);
    }
    assert_eq!(
        client
            .view_profile(1, 0)
            .await
            .expect("answered")
            .invitations,
        None
    );

    let inviters = client.view_friend_requests(10).await.expect("answered");
    assert_eq!((inviters.members.len(), inviters.wrong), (2, 0));
    let (accepted, rejected) = (inviters.members[0], inviters.members[1]);
    client
        .accept_friend_request(10, accepted)
        .await
        .expect("accepted");
    assert_eq!(counts(10).await, (7, 1));
    assert_eq!(counts(accepted).await, (7, 2));
    assert!(friends(10).await.contains(&accepted) && friends(accepted).await.contains(&10));
    let again = client.accept_friend_request(10, accepted).await;
    assert!(matches!(again, Err(Failure::Refused(_))), "{again:?}");
    client
        .reject_friend_request(10, rejected)
        .await
        .expect("rejected");
    assert_eq!(counts(10).await, (7, 0));
    client.invite_friend(30, 10).await.expect("invited");
    assert_eq!(counts(10).await, (7, 1));
    let again = client.invite_friend(30, 10).await;
    assert!(matches!(again, Err(Failure::Refused(_))), "{again:?}");
    assert_eq!(counts(10).await, (7, 1));
    client.thaw_friendship(accepted, 10).await.expect("thawed");
    assert_eq!(counts(10).await, (6, 1));
    assert_eq!(counts(accepted).await, (6, 2));
    let again = client.thaw_friendship(10, accepted).await;
    assert!(matches!(again, Err(Failure::Refused(_))), "{again:?}");

    let top = client.view_top_resources(0, 5, 3).await.expect("answered");
    assert_eq!(
        (top.resources, top.wrong),
        (population.top_of_wall(5, 3), 0)
    );
    client.post_comment(3, 17, 2).await.expect("posted");
    client.delete_comment(3, 17, 0).await.expect("deleted");
    let mut comments = client.view_comments(3, 17).await.expect("answered");
    comments.comments.sort_unstable();
    assert_eq!((comments.comments, comments.wrong), (vec![1, 2], 0));

    let posts: Vec<Post> = (1..=4)
        .map(|number: u64| Post {
            author: 9 + (number % 2) as u32,
            number: number.div_ceil(2),
            time: 100 + number,
        })
        .collect();
    for post in &posts {
        client
            .post_to_feed(post.author, *post)
            .await
            .expect("posted");
    }
    let feed = client.view_feed(11, 3).await.expect("answered");
    let newest: Vec<Post> = posts.iter().rev().take(3).copied().collect();
    assert_eq!((feed.posts, feed.wrong), (newest, 0));
    assert_eq!(
        client.view_feed(30, 3).await.expect("answered").posts,
        vec![]
    );
}

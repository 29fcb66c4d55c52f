//! Tests of the initial population.

use std::sync::Arc;

use larder_bg::model::draw;
use larder_bg::model::population::communities::Communities;
use larder_bg::model::population::graph::Graph;
use larder_bg::model::population::walls::Walls;
use larder_bg::model::population::{Friendships, Population, PopulationError};

fn lattice(members: u32, friends: u32, invitations: u32) -> Population {
    Population {
        members,
        friends,
        invitations,
        resources: 7,
        ..Population::default()
    }
}

fn of_graph(members: u32, invitations: u32, edges: &[(u32, u32)]) -> Population {
    Population {
        friendships: Friendships::Graph(Arc::new(Graph::new(members, edges))),
        ..lattice(members, 0, invitations)
    }
}

/// Checks that every pair of members has at most one relation, and that all functions agree on it.
fn check_relations(population: &Population) {
    population.check().unwrap();
    let members = population.members;
    let mut related = vec![0u8; (members * members) as usize];
    let mut invitations = 0;
    for member in 0..members {
        let friends: Vec<u32> = population.friends_of(member).collect();
        assert_eq!(population.friend_count(member), friends.len() as u32);
        for friend in friends {
            assert!(population.are_friends(member, friend));
            related[(member * members + friend) as usize] += 1;
        }
        for inviter in population.inviters_of(member) {
            assert!(population.invited_by(inviter).any(|other| other == member));
            related[(member * members + inviter) as usize] += 1;
            related[(inviter * members + member) as usize] += 1;
            invitations += 1;
        }
        let invited = population.invited_by(member).count();
        invitations -= invited as i64;
    }
    assert_eq!(invitations, 0, "invitations sent and received");
    for one in 0..members {
        assert_eq!(
            related[(one * members + one) as usize],
            0,
            "{one} and itself"
        );
        for other in 0..members {
            let (there, back) = (one * members + other, other * members + one);
            assert!(related[there as usize] <= 1, "{one} and {other}");
            assert_eq!(related[there as usize], related[back as usize]);
            let friends = population.are_friends(one, other);
            assert_eq!(
                friends,
                population.friends_of(one).any(|friend| friend == other)
            );
        }
    }
}

#[test]
fn two_members_have_at_most_one_relation() {
    check_relations(&lattice(1, 0, 0));
    check_relations(&lattice(11, 4, 3));
    check_relations(&lattice(10, 8, 0));
    check_relations(&lattice(101, 20, 40));
    let edges = [
        (0, 1),
        (1, 0),
        (2, 2),
        (3, 9),
        (9, 4),
        (4, 3),
        (0, 7),
        (0, 1),
        (0, 2),
    ];
    check_relations(&of_graph(10, 0, &edges));
    check_relations(&of_graph(10, 2, &edges));
    check_relations(&of_graph(60, 9, &edges));
}

fn divided(population: Population, speeds: &[f64]) -> Population {
    Population {
        communities: Communities::new(draw::DEFAULT, population.members, speeds),
        ..population
    }
}

#[test]
fn friendships_invitations_and_walls_stay_within_a_community() {
    let edges: Vec<(u32, u32)> = (0..90).map(|member| (member, member / 3)).collect();
    for population in [
        divided(lattice(90, 6, 3), &[1.0; 4]),
        divided(lattice(301, 4, 2), &[1.0, 2.5]),
        divided(of_graph(90, 3, &edges), &[1.0; 3]),
    ] {
        check_relations(&population);
        let communities = population.communities.as_ref().unwrap();
        let closed = matches!(population.friendships, Friendships::Lattice);
        for member in 0..population.members {
            let own = communities.community_of(member);
            let of_own = |other: u32| communities.community_of(other) == own;
            assert!(population.inviters_of(member).all(of_own));
            assert!(!closed || population.friends_of(member).all(of_own));
            let inviters = population.inviters_of(member).count();
            assert_eq!(inviters, population.invitations as usize);
            let wall: Vec<u64> = population.wall_of(member).collect();
            assert!(wall.iter().all(|it| population.wall(*it) == member));
            assert!(wall.iter().all(|it| of_own(population.creator(*it))));
        }
    }
}

#[test]
fn walls_give_the_same_top_with_and_without_communities() {
    for speeds in [&[1.0][..], &[1.0, 1.0, 2.0]] {
        let population = Arc::new(divided(lattice(61, 4, 0), speeds));
        let walls = Walls::new(&population);
        for member in 0..population.members {
            let descending: Vec<u64> = walls.descending(member).collect();
            assert_eq!(descending, population.top_of_wall(member, 7), "{member}");
        }
    }
}

#[test]
fn a_client_with_too_few_members_is_rejected_by_number() {
    let error = divided(lattice(90, 20, 5), &[1.0; 4]).check().unwrap_err();
    assert!(
        error.to_string().contains("of 4; use fewer clients"),
        "{error}"
    );
    assert_eq!(divided(lattice(90, 20, 5), &[1.0]).check(), Ok(()));
}

#[test]
fn a_graph_keeps_each_friendship_once() {
    let graph = Graph::new(5, &[(0, 1), (1, 0), (2, 2), (4, 0), (0, 1)]);
    assert_eq!(graph.friendships(), 2);
    assert_eq!(graph.friends_of(0), [1, 4]);
    assert!(graph.friends_of(2).is_empty());
    assert_eq!(graph.friends_of(4), [0]);
}

#[test]
fn every_resource_is_on_one_wall_and_all_walls_have_equal_size() {
    let population = lattice(13, 2, 0);
    let mut seen = vec![0; population.resource_count() as usize];
    for member in 0..population.members {
        let wall: Vec<u64> = population.wall_of(member).collect();
        assert_eq!(wall.len(), 7);
        for resource in &wall {
            assert_eq!(population.wall(*resource), member);
            seen[*resource as usize] += 1;
        }
        let top = population.top_of_wall(member, 3);
        assert!(top.is_sorted_by(|a, b| a > b) && top.iter().all(|it| wall.contains(it)));
        assert_eq!(top[0], *wall.iter().max().unwrap());
    }
    assert!(seen.iter().all(|count| *count == 1));
}

#[test]
fn invalid_numbers_are_rejected_by_name() {
    let error = |population: Population| population.check().unwrap_err().to_string();
    assert_eq!(lattice(0, 0, 0).check(), Err(PopulationError::NoMembers));
    assert!(error(lattice(10, 3, 0)).contains("--friends 3: must be even"));
    assert!(error(lattice(10, 10, 0)).contains("less than --members 10"));
    assert!(error(lattice(10, 8, 1)).contains("--invitations 1"));
    let mut other = of_graph(10, 0, &[(0, 1)]);
    other.members = 11;
    assert!(error(other).contains("graph has 10 members"));
}

//! A store that acknowledges before its disk has the write, which is a planted bug; and a correct one.

use larder_sim::{
    Input, Node, NodeId, Options, Output, Outputs, Plan, Random, Scene, Start, World,
};

const STORE: NodeId = NodeId(0);
const CLIENT: NodeId = NodeId(1);
const FAULTS_US: u64 = 2_000_000;
const END_US: u64 = 4_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Message {
    Put,
    /// The number of stored values.
    Have(u64),
}

struct Setup {
    answers_early: bool,
}

enum Actor {
    Store {
        answers_early: bool,
        have: u64,
        unanswered: Vec<(u64, u64)>,
        changes: u64,
    },
    Client {
        answered: u64,
        went_back: bool,
    },
}

impl Node for Actor {
    type Setup = Setup;
    type Message = Message;

    fn start(setup: &Setup, start: Start<'_>, out: &mut Outputs<Message>) -> Actor {
        if start.me == STORE {
            return Actor::Store {
                answers_early: setup.answers_early,
                have: start.disk.read("log").len() as u64,
                unanswered: Vec::new(),
                changes: 0,
            };
        }
        out.push(Output::Wake(start.now_us + 1));
        Actor::Client {
            answered: 0,
            went_back: false,
        }
    }

    fn step(&mut self, now_us: u64, input: Input<Message>, out: &mut Outputs<Message>) {
        match (self, input) {
            (Actor::Client { .. }, Input::Tick) => {
                out.push(Output::Send(STORE, Message::Put));
                out.push(Output::Wake(now_us + 5_000));
            }
            (
                Actor::Client {
                    answered,
                    went_back,
                },
                Input::Message(_, Message::Have(have)),
            ) => {
                *went_back |= have <= *answered;
                *answered = have;
            }
            (
                Actor::Store {
                    answers_early,
                    have,
                    unanswered,
                    changes,
                },
                Input::Message(_, Message::Put),
            ) => {
                *have += 1;
                *changes += 1;
                out.push(Output::Append("log", vec![1]));
                out.push(Output::Sync);
                if *answers_early {
                    out.push(Output::Send(CLIENT, Message::Have(*have)))
                } else {
                    unanswered.push((*changes, *have))
                }
            }
            (Actor::Store { unanswered, .. }, Input::Synced(upto)) => {
                unanswered.retain(|(changes, have)| {
                    let is_safe = *changes <= upto;
                    if is_safe {
                        out.push(Output::Send(CLIENT, Message::Have(*have)));
                    }
                    !is_safe
                });
            }
            _ => {}
        }
    }
}

/// Returns whether the client saw an acknowledged write disappear.
fn loses(seed: u64, answers_early: bool) -> bool {
    let mut random = Random::stream(seed, 0);
    let scene = Scene {
        mortal: vec![STORE],
        linked: vec![STORE, CLIENT],
        every_us: 100_000,
        lasts_us_max: 200_000,
        power: true,
    };
    let plan = Plan::draw(&mut random, &scene, 0, FAULTS_US);
    let options = Options::draw(&mut random, seed);
    let mut world: World<Actor> = World::new(2, Setup { answers_early }, options, plan);
    world.run_until(FAULTS_US);
    world.calm();
    world.run_until(END_US);
    match world.node(CLIENT) {
        Some(Actor::Client {
            went_back,
            answered,
        }) => {
            assert!(*answered > 0, "nothing was answered");
            *went_back
        }
        _ => panic!("the client runs"),
    }
}

#[test]
fn a_store_that_replies_before_syncing_is_detected() {
    assert!((0..50).any(|seed| loses(seed, true)));
    assert!((0..50).all(|seed| !loses(seed, false)));
}

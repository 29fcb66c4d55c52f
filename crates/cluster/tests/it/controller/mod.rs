//! Tests of the controller in simulated clusters.

mod members;
mod pushes;
mod scene;
mod thousand;
mod world;

use world::Cluster;

/// Runs one cluster with random events until it settles.
fn simulate(seed: u64) {
    let told = std::panic::catch_unwind(|| {
        let mut cluster = Cluster::new(seed);
        for _ in 0..3 {
            for _ in 0..200 {
                cluster.step();
            }
            cluster.settle();
        }
        cluster.changes
    });
    assert!(told.is_ok_and(|changes| changes > 10), "seed {seed}");
}

#[test]
fn whatever_happens_invariants_hold_no_acknowledged_write_is_lost_and_it_settles() {
    for seed in 0..8 {
        simulate(seed);
    }
}

#[test]
fn so_it_is_in_hundreds_of_clusters() {
    if larder_testing::is_asked_for("LARDER_SLOW_TESTS", "it takes some minutes") {
        for seed in 100..600 {
            simulate(seed);
        }
    }
}

//! Tests of the controller in simulated clusters.

mod members;
mod pushes;
mod scale;
mod scene;
mod world;

use world::Cluster;

/// Runs one cluster with random events until it settles.
fn simulate(seed: u64) {
    let result = std::panic::catch_unwind(|| {
        let mut cluster = Cluster::new(seed);
        for _ in 0..3 {
            for _ in 0..200 {
                cluster.step();
            }
            cluster.settle();
        }
        cluster.changes
    });
    assert!(result.is_ok_and(|changes| changes > 10), "seed {seed}");
}

#[test]
fn under_random_faults_invariants_hold_no_acknowledged_write_is_lost_and_the_cluster_settles() {
    for seed in 0..8 {
        simulate(seed);
    }
}

#[test]
fn hundreds_of_random_clusters_keep_the_invariants() {
    if larder_testing::is_enabled("LARDER_SLOW_TESTS", "it takes some minutes") {
        for seed in 100..600 {
            simulate(seed);
        }
    }
}

//! Tests that members are drawn with the right distribution, by one client or by several.

use std::sync::Arc;

use larder_bg::model::draw::fragment::split;
use larder_bg::model::draw::{
    Cells, DEFAULT, Distribution, DrawCounts, Drawing, Skew, exponent_for, mass_of_top,
};
use larder_bg::run::Process;
use larder_bg::verdict::measure::TrialRunner;
use larder_types::Random;

use crate::trial::{setup, trial};

fn zipf(exponent: f64) -> Distribution {
    Distribution::Zipf(Skew::Exponent(exponent))
}

/// Returns the probability of each rank.
fn shares(members: u32, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=members)
        .map(|rank| f64::from(rank).powf(-exponent))
        .collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Returns the chi-square statistic of the draws, in standard deviations from its expected value. Cells with an
/// expected count below 10 are merged.
fn apart(drawn: &[u64], shares: &[f64]) -> f64 {
    let all: u64 = drawn.iter().sum();
    let (mut chi, mut cells) = (0.0, 0u32);
    let (mut expected, mut found) = (0.0, 0);
    for (count, share) in drawn.iter().zip(shares) {
        expected += share * all as f64;
        found += count;
        if expected >= 10.0 {
            chi += (found as f64 - expected).powi(2) / expected;
            cells += 1;
            (expected, found) = (0.0, 0);
        }
    }
    let freedom = f64::from(cells - 1);
    (chi - freedom) / (2.0 * freedom).sqrt()
}

fn check(drawing: &Drawing, distribution: Distribution, members: u32) {
    let mut random = Random::stream(11, 3);
    let mut drawn = vec![0; members as usize];
    for _ in 0..400_000 {
        let member = drawing.draw(&mut random);
        drawn[distribution.member_of_rank(members, member) as usize] += 1;
    }
    let expected = shares(members, distribution.exponent(members));
    let apart = apart(&drawn, &expected);
    assert!(apart.abs() < 5.0, "{distribution}: {apart}");
}

#[test]
fn one_client_draws_with_the_intended_distribution() {
    for distribution in [
        Distribution::Uniform,
        DEFAULT,
        zipf(1.0),
        zipf(1.3),
        zipf(3.0),
        Distribution::Latest(Skew::Theta(0.27)),
        "zipf:80/20".parse().unwrap(),
    ] {
        for members in [1, 2, 10, 3000] {
            if members > 2 {
                check(
                    &Drawing::for_all_members(distribution, members),
                    distribution,
                    members,
                );
            } else {
                let drawn =
                    Drawing::for_all_members(distribution, members).draw(&mut Random::stream(1, 1));
                assert!(drawn < members);
            }
        }
    }
}

#[test]
fn several_clients_together_draw_like_one() {
    let members = 3000;
    for distribution in [DEFAULT, Distribution::Uniform, zipf(1.2)] {
        let fragments = split(distribution, members, &[1.0, 0.5, 2.0, 1.0]);
        let mut random = Random::stream(5, 5);
        let mut drawn = vec![0; members as usize];
        for fragment in fragments {
            // Each client makes its proportion of the draws.
            let draws = (fragment.mass() * 400_000.0).round() as u64;
            let drawing = Drawing::for_fragment(distribution, members, Arc::new(fragment));
            for _ in 0..draws {
                let member = drawing.draw(&mut random);
                assert!(drawing.owns(member));
                drawn[member as usize] += 1;
            }
        }
        let apart = apart(&drawn, &shares(members, distribution.exponent(members)));
        // Fixed proportions per client vary less than independent draws.
        assert!(apart < 5.0, "{distribution}: {apart}");
    }
}

/// Draws `draws` members and counts them as trials do.
fn counted(drawing: &Drawing, draws: u64, random: &mut Random) -> DrawCounts {
    let cells = Cells::new(drawing);
    let mut drawn = cells.empty();
    for _ in 0..draws {
        cells.count(&mut drawn, drawing.draw(random));
    }
    drawn
}

/// Returns the chi-square statistic in standard deviations from its mean.
fn deviations(drawn: &DrawCounts) -> f64 {
    let chi = drawn.chi_square();
    let freedom = f64::from(chi.degrees_of_freedom);
    (chi.value - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn draw_counts_report_the_actual_and_the_intended_distribution() {
    let random = &mut Random::stream(7, 7);
    for (distribution, members) in [
        (DEFAULT, 10_000),
        (Distribution::Uniform, 37),
        (Distribution::Latest(Skew::Theta(0.27)), 3000),
        ("zipf:80/20".parse().unwrap(), 3000),
        (zipf(3.0), 100),
    ] {
        let drawing = Drawing::for_all_members(distribution, members);
        let drawn = counted(&drawing, 400_000, random);
        assert_eq!(drawn.draws(), 400_000);
        let popular = drawn.popular();
        let exponent = distribution.exponent(members);
        let exact: f64 = shares(members, exponent)
            .iter()
            .take(members.div_ceil(5) as usize)
            .sum();
        assert!((popular.intended - exact).abs() < 1e-9, "{distribution}");
        assert!((popular.actual - exact).abs() < 0.005, "{distribution}");
        assert!(deviations(&drawn).abs() < 5.0, "{distribution}: {drawn:?}");
        assert!(drawn.total_variation() < 0.02, "{distribution}");
        // Draws from a different distribution are detected.
        let cells = Cells::new(&drawing);
        let mut other = cells.empty();
        for _ in 0..400_000 {
            cells.count(&mut other, random.below(members.into()) as u32);
        }
        let far = deviations(&other);
        assert_eq!(far > 100.0, distribution != Distribution::Uniform, "{far}");
    }
}

#[test]
fn draws_of_several_clients_add_up_to_the_intended_distribution() {
    let members = 3000;
    let mut sum = DrawCounts::default();
    for (index, fragment) in split(DEFAULT, members, &[1.0, 0.5, 2.0])
        .into_iter()
        .enumerate()
    {
        let draws = (fragment.mass() * 300_000.0).round() as u64;
        let drawing = Drawing::for_fragment(DEFAULT, members, Arc::new(fragment));
        let drawn = counted(&drawing, draws, &mut Random::stream(3, index as u64));
        assert!(deviations(&drawn) < 5.0, "among its own: {drawn:?}");
        sum.join(&drawn);
    }
    let intended: f64 = sum.cells.iter().map(|cell| cell.intended).sum();
    assert!((intended - 1.0).abs() < 1e-9);
    assert!(deviations(&sum) < 5.0 && sum.total_variation() < 0.02);
}

#[test]
fn trials_count_draws_and_skip_busy_members() {
    let run = |threads, unique_reads| {
        let mut setup = setup("memory", "read-only", &[]);
        setup.tracing = larder_bg::run::Tracing::None;
        setup.run_options.unique_reads = unique_reads;
        setup.run_options.between = std::time::Duration::from_micros(100);
        let measured = Process::new(setup).unwrap().run(&trial(threads, 400));
        measured.unwrap()
    };
    let alone = run(1, true);
    // Every one of these actions draws a member that acts, and most also draw a member to view.
    assert!(alone.drawn.draws() >= alone.done(), "{:?}", alone.drawn);
    assert!(deviations(&alone.drawn) < 5.0, "{:?}", alone.drawn);
    assert_eq!(
        alone.drawn.popular().intended,
        run(3, false).drawn.popular().intended
    );
}

#[test]
fn fragments_equal_those_of_the_released_bg() {
    let fragments = split(DEFAULT, 10_000, &[1.0; 4]);
    let mut sizes: Vec<usize> = fragments.iter().map(|it| it.members().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [2092, 2466, 2657, 2785]);
    let eight = split(DEFAULT, 10_000, &[1.0; 8]);
    let sizes = eight.iter().map(|it| it.members().len());
    assert_eq!((sizes.clone().min(), sizes.max()), (Some(783), Some(1478)));
    for fragments in [fragments, eight] {
        let mass: f64 = fragments.iter().map(|it| it.mass()).sum();
        let members: usize = fragments.iter().map(|it| it.members().len()).sum();
        assert!((mass - 1.0).abs() < 1e-9 && members == 10_000);
        for member in 0..10_000 {
            assert_eq!(fragments.iter().filter(|it| it.owns(member)).count(), 1);
        }
    }
}

#[test]
fn clients_get_members_in_proportion_to_their_speed() {
    let fragments = split(DEFAULT, 10_000, &[0.3, 0.6, 0.1]);
    for (fragment, speed) in fragments.iter().zip([0.3, 0.6, 0.1]) {
        assert!(
            (fragment.mass() - speed).abs() < 1e-3,
            "{}",
            fragment.mass()
        );
    }
    // The first member alone exceeds a client's part, as the masses show.
    let steep = split(zipf(1.5), 100, &[1.0; 4]);
    let masses: Vec<f64> = steep.iter().map(|it| it.mass()).collect();
    assert!(
        (masses.iter().sum::<f64>() - 1.0).abs() < 1e-9 && masses[3] > 0.25,
        "{masses:?}"
    );
}

#[test]
fn the_default_theta_differs_from_80_20() {
    let exponent = DEFAULT.exponent(10_000);
    assert!((exponent - 0.73).abs() < 1e-12);
    assert!((mass_of_top(10_000, exponent, 0.2) - 0.62080).abs() < 5e-6);
    assert!((mass_of_top(1_000, exponent, 0.2) - 0.595).abs() < 5e-4);
    assert!((mass_of_top(1_000_000, exponent, 0.2) - 0.640).abs() < 5e-4);
    assert!((exponent_for(10_000, 0.2, 0.8) - 0.9496).abs() < 5e-5);
    // The exact sum, and the approximation for many members.
    let exact: f64 = shares(50_000, 0.9).iter().take(10_000).sum();
    assert!((mass_of_top(50_000, 0.9, 0.2) - exact).abs() < 1e-10);
}

#[test]
fn all_of_ten_million_members_can_be_drawn() {
    let members = 10_000_000;
    let drawing = Drawing::for_all_members(DEFAULT, members);
    let mut random = Random::stream(2, 2);
    let mut drawn = [0u64; 20];
    let draws = 400_000;
    for _ in 0..draws {
        drawn[drawing.draw(&mut random) as usize / (members as usize / 20)] += 1;
    }
    assert!(drawn[10..].iter().all(|count| *count > 0), "{drawn:?}");
    let mut before = 0.0;
    let parts: Vec<f64> = (1..=20)
        .map(|part| {
            let mass = mass_of_top(members, 0.73, f64::from(part) / 20.0);
            mass - std::mem::replace(&mut before, mass)
        })
        .collect();
    let apart = apart(&drawn, &parts);
    assert!(apart.abs() < 5.0, "{apart}");
}

#[test]
fn distributions_round_trip_and_invalid_ones_are_rejected_by_name() {
    for text in [
        "uniform",
        "zipf:theta=0.27",
        "zipf:exponent=1.1",
        "zipf:80/20",
        "latest:theta=0.5",
    ] {
        assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
    }
    assert_eq!("zipf".parse::<Distribution>().unwrap(), DEFAULT);
    for text in [
        "",
        "zipfian",
        "zipf:",
        "zipf:x",
        "zipf:20/80",
        "uniform:theta=0.2",
        "zipf:theta=7",
        "zipf:exponent=-1",
    ] {
        let error = text.parse::<Distribution>().unwrap_err();
        assert!(error.starts_with(&format!("{text}: ")), "{error}");
    }
}

//! Tests of mixes: predefined ones and files.

use larder_bg::model::mix::{Activity, Mix, NAMED};
use larder_types::Random;

#[test]
fn every_named_mix_adds_up_and_draws_with_its_frequencies() {
    for named in NAMED {
        let mix = Mix::open(named.name).unwrap();
        let mut random = Random::stream(7, 0);
        let draws = 200_000;
        let mut drawn: Vec<u32> = vec![0; mix.parts().len()];
        for _ in 0..draws {
            let activity = mix.draw(&mut random);
            let place = mix.parts().iter().position(|(it, _)| *it == activity);
            drawn[place.unwrap()] += 1;
        }
        for ((activity, percent), drawn) in mix.parts().iter().zip(drawn) {
            let expected = percent / 100.0 * f64::from(draws);
            let apart = (f64::from(drawn) - expected).abs() / expected.sqrt();
            assert!(
                apart < 5.0,
                "{} {activity:?}: {drawn}, not {expected}",
                named.name
            );
        }
    }
}

#[test]
fn a_mix_file_may_have_comments_sessions_and_percent_signs() {
    let mix = Mix::parse(
        "m",
        "# all\n view-profile 99.5% # most\n\nview-self .5\nthaw 0\n",
    )
    .unwrap();
    let names: Vec<&str> = mix
        .parts()
        .iter()
        .map(|(activity, _)| activity.name())
        .collect();
    assert_eq!(names, ["view-profile", "view-self"]);
    assert_eq!(Activity::find("thaw").unwrap().name(), "thaw");
    assert_eq!(mix.actions().count(), 2, "a profile and the top of a wall");
}

#[test]
fn a_mix_can_be_written_inline() {
    let mix = Mix::open("view-profile 80, list-friends 19.5%,accept .5").unwrap();
    let parts: Vec<(&str, f64)> = mix
        .parts()
        .iter()
        .map(|(activity, percent)| (activity.name(), *percent))
        .collect();
    assert_eq!(
        parts,
        [
            ("view-profile", 80.0),
            ("list-friends", 19.5),
            ("accept", 0.5)
        ]
    );
    let wrong = Mix::open("view-profile 80, look 20")
        .unwrap_err()
        .to_string();
    assert!(
        wrong.contains("line 2: unknown action or session look"),
        "{wrong}"
    );
}

#[test]
fn an_invalid_mix_is_rejected_with_its_name_and_line() {
    let check = |text: &str, expected: &str| {
        let error = Mix::parse("my.mix", text).unwrap_err().to_string();
        assert_eq!(error, format!("mix my.mix{expected}"));
    };
    check(
        "view-profile 50\nlook 50",
        ", line 2: unknown action or session look",
    );
    check(
        "view-profile",
        ", line 1: the percentage of view-profile is missing",
    );
    check(
        "view-profile x",
        ", line 1: x is not a percentage from 0 to 100",
    );
    check(
        "view-profile -3",
        ", line 1: -3 is not a percentage from 0 to 100",
    );
    check(
        "view-profile 100 %",
        ", line 1: unexpected word % after the percentage",
    );
    check("thaw 50\n\nthaw 50", ", line 3: duplicate entry for thaw");
    check(
        "view-profile 60\nthaw 39",
        ": the percentages add up to 99 instead of 100",
    );
    check("", ": the percentages add up to 0 instead of 100");
    let missing = Mix::open("nosuch.mix").unwrap_err().to_string();
    assert!(
        missing.starts_with("--mix nosuch.mix: neither a named mix (symmetric-"),
        "{missing}"
    );
}

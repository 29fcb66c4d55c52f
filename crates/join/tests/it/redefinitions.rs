//! Joins that are declared again, replaced, or dropped while other joins read them.

use larder_join::{CreateBehavior, DefinitionEffect, DropBehavior, Error};

use crate::story::{TestEngine, engine_with};

const COUNT: &str = "out|<a> = count in|<a>|<b>";
const SUM: &str = "out|<a> = sum in|<a>|<b>";

fn counted() -> TestEngine {
    let mut t = engine_with(&[COUNT]);
    t.put(&[("in|x|1", "5"), ("in|x|2", "5")])
        .shows("out|x|", &[]);
    t
}

impl TestEngine {
    fn define(
        &mut self,
        name: &str,
        definition: &str,
        if_defined: CreateBehavior,
    ) -> Result<(), String> {
        let defined = self.0.define(name, definition, if_defined, self.1);
        defined.map(drop).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn is(&mut self, key: &str, value: &str) {
        assert_eq!(
            self.read(key, &format!("{key}\0")),
            [format!("{key} {value}")]
        );
    }
}

#[test]
fn repeating_a_definition_changes_nothing() {
    let mut t = counted();
    t.is("out|x", "2");
    let filled = t.0.info("j0").unwrap().filled;
    t.0.record_changes(true);
    for if_defined in [
        CreateBehavior::Refuse,
        CreateBehavior::Keep,
        CreateBehavior::Replace,
    ] {
        let admitted = t.0.check_definition("j0", COUNT, if_defined);
        assert_eq!(admitted, Ok(DefinitionEffect::Unchanged));
        t.define("j0", COUNT, if_defined).unwrap();
        t.define("j0", &format!(" {COUNT} "), if_defined).unwrap();
    }
    t.define("j0", SUM, CreateBehavior::Keep).unwrap();
    assert_eq!(t.0.take_changes(), []);
    let replaced = t.0.check_definition("j0", SUM, CreateBehavior::Replace);
    assert_eq!(replaced, Ok(DefinitionEffect::Replaced));
    assert_eq!(
        t.0.check_definition("j9", SUM, CreateBehavior::Replace),
        Ok(DefinitionEffect::New)
    );
    t.is("out|x", "2");
    assert_eq!(t.0.info("j0").unwrap().filled, filled, "it stays filled");
    let refused = t.define("j0", SUM, CreateBehavior::Refuse).unwrap_err();
    assert!(refused.contains("OR REPLACE"), "{refused}");
    // An invalid definition is rejected even if the existing one would be kept.
    assert!(
        t.define("j0", "out|<a> = nothing", CreateBehavior::Keep)
            .is_err()
    );
}

#[test]
fn a_join_is_replaced_in_one_step() {
    let mut t = counted();
    t.is("out|x", "2");
    t.0.record_changes(true);
    t.define("j0", SUM, CreateBehavior::Replace).unwrap();
    assert_eq!(
        t.0.take_changes().len(),
        1,
        "the journal contains the replacement atomically"
    );
    t.is("out|x", "10");
    assert_eq!(t.0.list().len(), 1);
    t.put(&[("in|x|3", "1")]).is("out|x", "11");
    t.define("other", COUNT, CreateBehavior::Replace).unwrap();
    assert_eq!(t.0.list().len(), 2, "no join was replaced");
}

#[test]
fn readers_of_a_join_read_its_replacement() {
    let mut t = counted();
    t.0.create("reader", "twice|<a> = copy out|<a>", 0).unwrap();
    t.is("twice|x", "2");
    t.define("j0", SUM, CreateBehavior::Replace).unwrap();
    t.is("twice|x", "10");
    t.put(&[("in|x|3", "1")]).is("twice|x", "11");
    // The reader is maintained on writes, which these definitions would prevent.
    for (definition, why) in [
        ("out|<a> = pull sum in|<a>|<b>", "needs its changes"),
        ("elsewhere|<a> = sum in|<a>|<b>", "is read by reader"),
        ("out|<a> = sum twice|<a>", "is cyclic"),
    ] {
        let refused = t
            .define("j0", definition, CreateBehavior::Replace)
            .unwrap_err();
        assert!(refused.contains(why), "{refused}");
        t.is("twice|x", "11");
    }
}

#[test]
fn a_join_may_be_replaced_by_one_that_conflicts_with_it() {
    let mut t = engine_with(&["out|<a> = copy in|<a>"]);
    t.define("j0", "in|<a> = copy out|<a>", CreateBehavior::Replace)
        .unwrap();
    t.put(&[("out|x", "5")]).is("in|x", "5");
}

#[test]
fn a_join_with_readers_is_dropped_only_with_cascade() {
    let mut t = counted();
    for (name, definition) in [
        ("second", "second|<a> = copy out|<a>"),
        ("third", "third|<a> = copy second|<a>"),
        ("apart", "apart|<a> = count in|<a>|<b>"),
    ] {
        t.0.create(name, definition, 0).unwrap();
    }
    t.is("third|x", "2");
    let readers = vec!["second".to_owned()];
    let name = "j0".to_owned();
    assert_eq!(
        t.0.plan_drop("j0", DropBehavior::Refuse),
        Err(Error::JoinIsRead { name, readers })
    );
    assert_eq!(
        t.0.plan_drop("third", DropBehavior::Refuse).unwrap(),
        ["third"]
    );
    let all = t.0.plan_drop("j0", DropBehavior::Cascade).unwrap();
    assert_eq!(all, ["third", "second", "j0"], "readers first");
    for name in all {
        assert_eq!(
            t.0.plan_drop(&name, DropBehavior::Refuse).unwrap(),
            [&*name]
        );
        t.0.drop_join(&name).unwrap();
    }
    assert_eq!(t.0.list().len(), 1);
    t.is("apart|x", "2");
    assert!(t.0.plan_drop("j0", DropBehavior::Cascade).is_err());
}

#[test]
fn a_subscription_continues_with_the_replacement_of_its_join() {
    let mut t = counted();
    t.is("out|x", "2");
    let outcome = t.0.subscribe(b"out|", false, 0).unwrap();
    let number = outcome.done().expect("all rows are here");
    t.define("j0", SUM, CreateBehavior::Replace).unwrap();
    assert_eq!(t.0.stale_subscriptions(), [number]);
    let refreshed = t.0.refresh_subscription(number, 0).unwrap();
    assert!(refreshed.done().is_some());
    assert!(t.0.stale_subscriptions().is_empty());
    t.0.take_row_changes();
    t.put(&[("in|x|3", "1")]);
    assert!(t.0.stale_subscriptions().is_empty() && t.0.has_row_changes());
    t.0.evict_all();
    assert_eq!(t.filled("j0"), 1, "it is pinned");
}

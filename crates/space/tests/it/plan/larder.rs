//! larder's cost model, term by term.

use larder_space::plan::{
    AttributeSet, Bucket, Configuration, CostModel, Costs, Deployment, HotValue, LarderModel,
    Prediction, QueryClass, Workload,
};

use super::{by, hotels, update};

/// Each cost is one microsecond, on eight servers of two processors, with messages that take no time.
fn deployment() -> Deployment {
    Deployment {
        servers: 8,
        cores: 2,
        replicas: 2,
        message_us: 0.0,
        costs: Costs {
            get_us: 1.0,
            query_us: 1.0,
            server_us: 1.0,
            region_us: 1.0,
            candidate_us: 1.0,
            result_us: 1.0,
            result_byte_us: 0.0,
            write_us: 1.0,
            stage_us: 1.0,
            move_us: 1.0,
            index_entry_us: 1.0,
            ..Costs::default()
        },
        ..Deployment::default()
    }
}

fn predict(workload: &Workload, lists: &[&str], indexes: &[usize]) -> Prediction {
    let deployment = deployment();
    let mut configuration = Configuration::parse(lists, workload, 256).expect("a configuration");
    configuration.indexes = AttributeSet::of(indexes.iter().copied());
    let model = LarderModel::new(workload, &deployment, AttributeSet::default()).expect("ok");
    model.predict(&configuration)
}

fn near(is: f64, expected: f64) {
    assert!(
        (is - expected).abs() < expected.abs() * 1e-6 + 1e-9,
        "{is}, not {expected}"
    );
}

#[test]
fn without_a_subspace_a_query_contacts_every_server() {
    let workload = hotels(&["city"], vec![by(1.0, &["city"])], vec![]);
    let prediction = predict(&workload, &[], &[]);
    let class = &prediction.classes[0];
    assert_eq!((class.servers, class.regions), (8.0, 8.0));
    // All objects are scanned, which takes a fraction of the time each, and then the match is examined.
    assert_eq!(class.candidates, 256_000.0 / 64.0 + 1.0);
    // A local index finds the match, because each object has a city of its own.
    let class = &predict(&workload, &[], &[0]).classes[0];
    near(class.candidates, 1.0);
    assert_eq!(class.index.as_deref(), Some("city"));
    near(class.parts.work(), 1.0 + 8.0 + 8.0 + 1.0 + 1.0);
}

#[test]
fn sent_rows_cost_by_their_bytes() {
    let mut workload = hotels(&["city"], vec![by(1.0, &["city"])], vec![]);
    workload.object_bytes = 150;
    let mut deployment = deployment();
    deployment.costs.result_byte_us = 0.01;
    let configuration = Configuration::parse(&[], &workload, 256).expect("a configuration");
    let model = LarderModel::new(&workload, &deployment, AttributeSet::default()).expect("ok");
    let class = &model.predict(&configuration).classes[0];
    near(class.parts.results, 1.0 + 1.5);
}

#[test]
fn conditions_subspaces_matches_and_servers_with_matches_have_separate_costs() {
    let both = QueryClass {
        matches: Some(10.0),
        histogram: vec![Bucket {
            matches: 10.0,
            share: 1.0,
        }],
        results: Some(5.0),
        ..by(1.0, &["city", "address"])
    };
    let workload = hotels(&["city", "address"], vec![both, by(1.0, &["city"])], vec![]);
    let mut deployment = deployment();
    deployment.costs = Costs {
        condition_us: 2.0,
        subspace_us: 0.5,
        found_us: 3.0,
        match_us: Some(4.0),
        scan_us: Some(0.1),
        candidate_us: 0.25,
        ..deployment.costs
    };
    let predict = |lists: &[&str], indexes: &[usize]| {
        let mut configuration =
            Configuration::parse(lists, &workload, 256).expect("a configuration");
        configuration.indexes = AttributeSet::of(indexes.iter().copied());
        let model = LarderModel::new(&workload, &deployment, AttributeSet::default()).expect("ok");
        model.predict(&configuration).classes
    };
    let [two, one] = &predict(&[], &[0])[..] else {
        panic!("two classes");
    };
    near(two.parts.servers, 8.0 * (1.0 + 2.0));
    near(one.parts.servers, 8.0);
    // Objects that an index yields are examined if there is another condition. Matches are examined in any case.
    near(two.parts.candidates, 10.0 * 0.25 + 10.0 * 4.0);
    near(one.parts.candidates, 4.0);
    let servers_that_find = 8.0 * (1.0 - (7.0f64 / 8.0).powi(10));
    near(two.parts.results, 10.0 + servers_that_find * 3.0);
    // Without an index, all objects are examined.
    near(predict(&[], &[])[1].parts.candidates, 25_600.0 + 4.0);
    let three = &predict(&["city:4", "address:2", "address:4"], &[0])[0];
    near(three.parts.queries, 1.0 + 3.0 * 0.5);
}

#[test]
fn a_copy_that_leaves_a_server_may_cost_less_than_one_that_arrives() {
    let workload = hotels(&["city"], vec![], vec![update(1.0, &["city"])]);
    let mut deployment = deployment();
    let configuration = Configuration::parse(&["city:8"], &workload, 256).expect("one");
    let stages = |deployment: &Deployment| {
        let model = LarderModel::new(&workload, deployment, AttributeSet::default());
        model.expect("ok").predict(&configuration).classes[0]
            .parts
            .stages
    };
    let (moves, owner) = (7.0 / 8.0, 2.0);
    near(stages(&deployment), owner + 2.0 * (1.0 + moves));
    deployment.costs.leave_us = Some(0.0);
    near(stages(&deployment), owner + 2.0);
}

/// HyperDex's placement needs 1 of 8 servers for city by (city, address), and all 8 for the address.
#[test]
fn an_outer_attribute_that_is_fixed_saves_servers() {
    let queries = vec![by(1.0, &["city"]), by(1.0, &["address"])];
    let workload = hotels(&["city", "address"], queries, vec![]);
    let prediction = predict(&workload, &["city,address"], &[]);
    let servers: Vec<f64> = prediction.classes.iter().map(|it| it.servers).collect();
    let regions: Vec<f64> = prediction.classes.iter().map(|it| it.regions).collect();
    assert_eq!(servers, [1.0, 8.0]);
    // A search by address would contact every server through the subspace. The key subspace contacts them too, and has
    // fewer regions.
    assert_eq!(regions, [16.0, 8.0]);
    assert_eq!(prediction.servers, 4.5);
    // A server scans all its objects, whichever of its regions are requested.
    near(prediction.classes[0].candidates, 32_000.0 / 64.0 + 1.0);
    let work: Vec<f64> = prediction
        .classes
        .iter()
        .map(|it| it.parts.work())
        .collect();
    assert!(work[1] > 7.0 * work[0], "{work:?}");
}

#[test]
fn a_range_contacts_its_share_of_the_cells_and_one_more() {
    let mut class = by(1.0, &[]);
    class.range.insert("price".to_owned(), 0.1);
    let workload = hotels(&["price"], vec![class], vec![]);
    let class = &predict(&workload, &["price:8"], &[]).classes[0];
    near(class.regions, 1.0 + 25.5);
    near(class.servers, 1.0 + 25.5 / 32.0);
}

#[test]
fn one_of_several_values_contacts_a_cell_for_each_at_most() {
    let mut class = by(1.0, &[]);
    class.one_of.insert("city".to_owned(), 3.0);
    let workload = hotels(&["city"], vec![class], vec![]);
    let class = &predict(&workload, &["city:8"], &[]).classes[0];
    assert!(class.regions > 2.97 && class.regions < 3.0);
    assert!(class.servers > 2.6 && class.servers < 2.7);
}

/// According to the thesis, one value of stars, of six, is in one region of 1,000 objects. With the real data, a query
/// contacts 42,667 objects.
#[test]
fn an_attribute_of_few_values_has_no_small_regions() {
    let mut workload = hotels(&["stars"], vec![by(1.0, &["stars"])], vec![]);
    workload.attributes[0].distinct = Some(6);
    let class = &predict(&workload, &["stars:8"], &[]).classes[0];
    // The matches, after a scan of all objects on the servers that have them.
    let matches = 256_000.0 / 6.0;
    assert!((matches..matches * 1.05).contains(&class.candidates));
    near(class.regions, 256.0 / 6.0);
    // The cells of a value are adjacent, so their number of servers is their share of all servers, plus one.
    near(class.servers, 1.0 + (256.0 / 6.0 - 1.0) / 32.0);
    workload.attributes[0].hot = vec![HotValue {
        objects: 0.54,
        queries: 0.5,
    }];
    let class = &predict(&workload, &["stars:8"], &[]).classes[0];
    let matches = 256_000.0 * (0.5 * 0.54 + 0.5 * 0.46 / 5.0);
    assert!((matches..matches * 1.05).contains(&class.candidates));
}

#[test]
fn a_value_in_all_queries_loads_one_server() {
    let mut workload = hotels(&["city"], vec![by(1.0, &["city"])], vec![]);
    let even = predict(&workload, &["city:8"], &[]);
    near(even.capacity, even.capacity_even);
    workload.attributes[0].hot = vec![HotValue {
        objects: 1.0 / 256_000.0,
        queries: 1.0,
    }];
    let hot = predict(&workload, &["city:8"], &[]);
    assert!(hot.capacity < even.capacity / 6.0);
    // A search that contacts all servers loads them equally, and is as good here.
    let all = predict(&workload, &[], &[]);
    near(all.capacity, all.capacity_even);
    near(hot.capacity, all.capacity);
}

#[test]
fn few_regions_leave_servers_without_work() {
    let workload = hotels(&["city"], vec![by(1.0, &["city"])], vec![]);
    let prediction = predict(&workload, &["city:1"], &[0]);
    let parts = prediction.classes[0].parts;
    // Two of eight servers do all the work: four times the mean.
    let searched = parts.servers + parts.regions + parts.candidates + parts.results;
    near(parts.skew, 3.0 * searched);
    let workload = hotels(&["city"], vec![], vec![update(1.0, &["city"])]);
    let capacity = |list| predict(&workload, &[list], &[]);
    // With two replicas of each region, four copies leave some servers idle, and eight leave none.
    let (two, four) = (capacity("city:1"), capacity("city:2"));
    assert!(two.capacity < two.capacity_even && four.capacity == four.capacity_even);
}

#[test]
fn a_write_passes_the_replicas_of_each_region_it_is_or_was_in() {
    let workload = hotels(
        &["city", "price"],
        vec![],
        vec![update(1.0, &["price"]), update(1.0, &["city"])],
    );
    let prediction = predict(&workload, &["city:8"], &[0, 1]);
    let [price, city] = &prediction.classes[..] else {
        panic!("two classes");
    };
    assert_eq!(price.chain, 4.0);
    // With a probability of one eighth, the new server is the old one.
    let moves = 7.0 / 8.0;
    near(city.chain, 4.0 + 2.0 * moves);
    near(city.parts.moves, 2.0 * moves);
    near(price.parts.index_entries, 2.0 * 2.0 * 2.0);
    near(
        city.parts.index_entries,
        4.0 + 4.0 * (2.0 * moves + (1.0 - moves)),
    );
    near(
        prediction.storage_bytes,
        4.0 * 256_000.0 * (200.0 + 2.0 * 40.0),
    );
}

#[test]
fn the_cost_of_a_configuration_is_the_sum_of_the_search() {
    let workload = super::random_workload(5, 8, 0.3, 11);
    let deployment = deployment();
    let all = AttributeSet::of(0..5);
    let model = LarderModel::new(&workload, &deployment, all).expect("ok");
    let lists = ["a0,a1", "a2:3", "a3,a4,a0"];
    let configuration = Configuration::parse(&lists, &workload, 64).expect("ok");
    let mut cost = model.fixed();
    for query in 0..model.queries() {
        let with = configuration
            .subspaces
            .iter()
            .map(|it| model.with(query, it));
        cost += with.fold(model.without(query), f64::min);
    }
    cost += configuration
        .subspaces
        .iter()
        .map(|it| model.upkeep(it))
        .sum::<f64>();
    near(model.predict(&configuration).parts.with_skew(), cost);
}

#[test]
fn clients_share_the_servers() {
    let workload = hotels(
        &["city"],
        vec![by(1.0, &["city"])],
        vec![update(1.0, &["city"])],
    );
    let throughput = |clients| {
        let deployment = Deployment {
            clients,
            message_us: 20.0,
            ..deployment()
        };
        let model = LarderModel::new(&workload, &deployment, AttributeSet::of([0])).expect("ok");
        let configuration = Configuration::parse(&["city"], &workload, 256).expect("ok");
        let prediction = model.predict(&configuration);
        assert!(prediction.throughput <= prediction.capacity * (1.0 + 1e-9));
        near(
            f64::from(clients) * 1e6 / prediction.throughput,
            prediction.latency_us,
        );
        (prediction.throughput, prediction)
    };
    let (one, prediction) = throughput(1);
    near(one, 1e6 / prediction.latency_idle_us);
    let mut before = one;
    for clients in [2, 4, 16, 64, 1000] {
        let (now, _) = throughput(clients);
        assert!(now >= before);
        before = now;
    }
    let (many, prediction) = throughput(10_000);
    assert!(
        many > 0.95 * prediction.capacity,
        "{many} of {}",
        prediction.capacity
    );
}

#[test]
fn storage_limits_the_subspaces() {
    let workload = hotels(&["city"], vec![by(1.0, &["city"])], vec![]);
    let deployment = Deployment {
        // The size of one copy: 2 replicas of 256,000 objects of 200 bytes.
        storage_bytes_max: Some(3 * 102_400_000 + 1),
        ..deployment()
    };
    let model = LarderModel::new(&workload, &deployment, AttributeSet::default()).expect("ok");
    assert_eq!(model.subspaces_max(), 2);
}

#[test]
fn an_impossible_deployment_is_rejected() {
    let workload = hotels(&["city"], vec![by(1.0, &["city"])], vec![]);
    let refused = |edit: &dyn Fn(&mut Deployment)| {
        let mut deployment = deployment();
        edit(&mut deployment);
        let model = LarderModel::new(&workload, &deployment, AttributeSet::default());
        model.expect_err("an error")
    };
    assert_eq!(
        refused(&|it| it.replicas = 9),
        "deployment: replicas: 9 copies on 8 servers; each copy needs its own"
    );
    assert_eq!(
        refused(&|it| it.regions = 100),
        "deployment: regions: 100 regions: must be a power of two from 1 to 16384"
    );
    assert_eq!(
        refused(&|it| it.costs.move_us = f64::NAN),
        "deployment: costs.move_us: NaN is not a time in microseconds; 0 to 1e9"
    );
}

/// Each server finds as many rows as are sent, if it has them.
#[test]
fn servers_together_find_more_than_the_reply_contains() {
    let mut query = by(1.0, &["city"]);
    query.results = Some(20.0);
    let mut workload = hotels(&["city"], vec![query], vec![]);
    workload.attributes[0].distinct = Some(10);
    let found = |workload: &Workload, lists: &[&str]| {
        predict(workload, lists, &[0]).classes[0].parts.results
    };
    // Of 25,600 matches, eight servers find 20 each; the two with the city's cells find fewer in total.
    let (all, few) = (found(&workload, &[]), found(&workload, &["city:8"]));
    assert!((159.0..=160.0).contains(&all), "{all}");
    assert!((20.0..60.0).contains(&few), "{few}");
    workload.queries[0].results = None;
    near(found(&workload, &[]), 25_600.0);
}

/// Concurrent writes share commits, and searches wait for them.
#[test]
fn searches_and_writes_contend() {
    let mut deployment = deployment();
    (deployment.replicas, deployment.servers, deployment.clients) = (1, 2, 8);
    (deployment.costs.commit_us, deployment.costs.beside_us) = (12.0, 5.0);
    let parts = |searches: f64, writes: f64| {
        let workload = hotels(
            &["city"],
            vec![by(searches, &["city"])],
            vec![update(writes, &[])],
        );
        let configuration = Configuration::parse(&[], &workload, 256).expect("a configuration");
        let model = LarderModel::new(&workload, &deployment, AttributeSet::default()).expect("ok");
        let classes = model.predict(&configuration).classes;
        (classes[0].parts.contention, classes[1].parts.stages)
    };
    // Four clients write at each of two servers, then two, then fewer than one.
    near(parts(0.0, 1.0).1, 1.0 + 12.0 / 4.0);
    near(parts(1.0, 1.0).1, 1.0 + 12.0 / 2.0);
    near(parts(9.0, 1.0).1, 1.0 + 12.0);
    near(parts(1.0, 1.0).0, 2.0 * 5.0 * (1.0 - (-2.0f64).exp()));
    near(parts(1.0, 0.0).0, 0.0);
}

/// The cost of a write at the owner of the key differs from the cost of a copy.
#[test]
fn each_copy_of_a_write_has_the_same_cost_and_the_owner_another() {
    let workload = hotels(&["city"], vec![], vec![update(1.0, &[])]);
    let mut deployment = deployment();
    deployment.replicas = 1;
    (deployment.costs.write_us, deployment.costs.stage_us) = (10.0, 3.0);
    let model = LarderModel::new(&workload, &deployment, AttributeSet::default()).expect("ok");
    for (lists, expected) in [
        (&[][..], 10.0),
        (&["city:8"], 13.0),
        (&["city:8", "city:4"], 16.0),
    ] {
        let configuration = Configuration::parse(lists, &workload, 256).expect("a configuration");
        near(model.predict(&configuration).parts.work(), expected);
    }
}

/// A few queries with very many matches do not make the others expensive: a server visits its objects in order until it
/// has enough rows.
#[test]
fn queries_with_many_matches_cost_at_most_a_walk() {
    let bucket = |matches, share| Bucket { matches, share };
    let class = QueryClass {
        matches: Some(2_505.0),
        histogram: vec![bucket(10.0, 0.75), bucket(9_990.0, 0.25)],
        results: Some(0.75 * 10.0 + 0.25 * 20.0),
        ..by(1.0, &["city"])
    };
    let workload = hotels(&["city"], vec![class], vec![]);
    let us = |walk_us: Option<f64>| {
        let mut deployment = deployment();
        deployment.costs.match_us = Some(0.1);
        deployment.costs.walk_us = walk_us;
        let mut configuration = Configuration::parse(&[], &workload, 256).expect("one");
        configuration.indexes = AttributeSet::of([0]);
        let model = LarderModel::new(&workload, &deployment, AttributeSet::default()).expect("ok");
        model.predict(&configuration).classes[0].parts.candidates
    };
    near(us(None), 250.5);
    // Eight servers with twenty rows each, where every 25.6th object matches.
    let walked = 8.0 * 20.0 * 256_000.0 / 9_990.0 * 0.2;
    near(us(Some(0.2)), 0.75 * 1.0 + 0.25 * walked);
}

#[test]
fn an_impossible_histogram_is_rejected() {
    let bucket = |matches, share| Bucket { matches, share };
    for (histogram, key) in [
        (vec![bucket(1.0, 0.5)], "query[0].histogram"),
        (vec![bucket(-1.0, 1.0)], "query[0].histogram[0].matches"),
        (
            vec![bucket(1.0, 0.5), bucket(f64::NAN, 0.5)],
            "query[0].histogram[1].matches",
        ),
        (vec![bucket(1.0, 1.5)], "query[0].histogram[0].share"),
    ] {
        let class = QueryClass {
            histogram,
            ..by(1.0, &["city"])
        };
        let workload = hotels(&["city"], vec![class], vec![]);
        assert_eq!(workload.check().expect_err(key).key, key);
    }
}

/// Each server sends as many rows as the search requests; the reply contains that number once.
#[test]
fn rows_from_servers_cost_per_server_and_rows_of_the_reply_once() {
    let class = QueryClass {
        matches: Some(1_000.0),
        histogram: vec![Bucket {
            matches: 1_000.0,
            share: 1.0,
        }],
        results: Some(20.0),
        ..by(1.0, &["city"])
    };
    let mut workload = hotels(&["city"], vec![class], vec![]);
    workload.object_bytes = 100;
    let results = |row_us: Option<f64>| {
        let mut deployment = deployment();
        deployment.costs = Costs {
            row_us,
            row_byte_us: 0.001,
            result_byte_us: 0.01,
            ..deployment.costs
        };
        let configuration = Configuration::parse(&[], &workload, 256).expect("one");
        let model = LarderModel::new(&workload, &deployment, AttributeSet::default()).expect("ok");
        model.predict(&configuration).classes[0].parts.results
    };
    near(results(Some(0.2)), 160.0 * (0.2 + 0.1) + 20.0 * (1.0 + 1.0));
    near(results(None), 160.0 * (1.0 + 1.0));
}

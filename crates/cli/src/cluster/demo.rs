//! `larder cluster demo`: demonstrates a cluster on this machine, in which a node dies and is replaced, in numbered
//! steps.

use std::time::{Duration, Instant};

use clap::Args;
use larder_client::{AdminClient, Reply, RespClient};
use larder_protocol::http::{ClusterRequest, ClusterSettingsChange, ClusterStatus};

use super::local::{ClusterShape, Local, NodeAddress};
use super::status::is_healthy;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{StepPrinter, count, duration, print_line};

const ROWS: usize = 1000;
const JOIN: &str =
    "tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>";
/// There are no clients whose requests could be delayed.
const FILL_SLOTS_AT_ONCE: u16 = 2_048;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

const EXAMPLES: &str = "\
Examples:
    larder cluster demo
    larder cluster demo --exit
    larder cluster demo --port 7301

The program etcd must be installed. `larder cluster local` starts such a cluster without the demonstration.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Exit after the demonstration, instead of serving until ctrl-c
    #[arg(long)]
    exit: bool,
    #[command(flatten)]
    shape: ClusterShape,
}

pub fn run(args: DemoArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    if args.shape.nodes < 3 || args.shape.replicas < 2 {
        return Err(Failure::usage(
            "a node dies in this story: it takes at least --nodes 3 and --replicas 2",
        ));
    }
    let mut demo = Demo {
        local: Local::start(&args.shape)?,
        story: StepPrinter::default(),
    };
    demo.introduce()?;
    demo.write_and_read()?;
    demo.join_rows()?;
    demo.lose_a_node()?;
    demo.replace_it()?;
    if !args.exit {
        print_line(&demo.local.usage_text())?;
        demo.local.report_until_interrupted();
    }
    demo.local.end();
    print_line("All processes of the cluster are ended.")
}

struct Demo {
    local: Local,
    story: StepPrinter,
}

impl Demo {
    fn introduce(&mut self) -> Result<(), Failure> {
        let nodes = self.local.addresses();
        let replicas = self.local.replicas();
        let mut lines = vec![format!(
            "etcd stores the cluster map, which assigns the 16,384 slots to nodes. {replicas} nodes have each slot; one of them owns it."
        )];
        for node in &nodes {
            lines.push(format!(
                "{}: Redis protocol on {}, console on {}/",
                node.name, node.resp, node.http
            ));
        }
        let title = format!("{} nodes and an etcd", nodes.len());
        self.wait_until("all copies are made", is_healthy)?;
        self.story.print_step(&title, &lines)
    }

    fn write_and_read(&mut self) -> Result<(), Failure> {
        let nodes = self.local.addresses();
        let (first, last) = (nodes[0].clone(), nodes[nodes.len() - 1].clone());
        let (started, through) = (Instant::now(), client(&first));
        for row in 0..ROWS {
            through.command(&[b"SET", key(row).as_bytes(), b"hello"])?;
        }
        let written = started.elapsed();
        let found = rows_of(&client(&last))?;
        self.story.print_step(
            "Any node answers any client",
            &[
                format!("{} rows written through {} in {}; each was acknowledged when its owner and its copies had it", count(ROWS as u64), first.name, duration(written)),
                format!("redis-cli -p {} RANGE 'post|ann|' 'post|ann}}'", port(&last)),
                format!("{} of them are read through {}", count(found as u64), last.name),
            ],
        )
    }

    fn join_rows(&mut self) -> Result<(), Failure> {
        let nodes = self.local.addresses();
        let (first, second) = (client(nodes[0]), client(nodes[1]));
        let (first_name, second_name) = (nodes[0].name.clone(), nodes[1].name.clone());
        first.command(&[b"JOIN.CREATE", b"timeline", JOIN.as_bytes()])?;
        first.command(&[b"SET", b"sub|eve|ann", b"1"])?;
        let seen = |client: &RespClient| -> Result<usize, Failure> {
            pairs(client.command(&[b"RANGE", b"tline|eve|", b"tline|eve}"])?)
        };
        let before = seen(&second)?;
        first.command(&[b"SET", b"post|ann|9999", b"news"])?;
        let after = seen(&second)?;
        self.story.print_step(
            "Joins over nodes",
            &[
                format!(
                    "eve follows ann: {} posts are in eve's timeline, read through {second_name}",
                    count(before as u64)
                ),
                format!(
                    "ann posts through {first_name}: eve's timeline immediately has {} posts",
                    count(after as u64)
                ),
            ],
        )
    }

    fn lose_a_node(&mut self) -> Result<(), Failure> {
        let (killed, pid) = {
            let node = self.local.addresses()[1].clone();
            (node.name, node.pid)
        };
        let through = client(self.local.addresses()[0]);
        self.local.kill(1);
        // Each row is read once and a new one written, as soon as a node serves it again.
        let (mut row, mut longest, mut started) = (0, Duration::ZERO, Instant::now());
        while row < ROWS {
            let written = through.command(&[b"SET", format!("late|u{row}|1").as_bytes(), b"x"]);
            let read = written.and_then(|_| through.get(key(row)));
            match read {
                Ok(Some(_)) => {
                    row += 1;
                    longest = longest.max(started.elapsed());
                    started = Instant::now();
                }
                Ok(None) => {
                    let row = key(row);
                    return Err(Failure::new(format!("{row} is lost, and was acknowledged")));
                }
                Err(error) if started.elapsed() > STEP_TIMEOUT => return Err(error.into()),
                Err(_) => self.wait()?,
            }
        }
        self.story.print_step(
            &format!("{killed} dies"),
            &[
                format!("kill -9 {pid}"),
                format!(
                    "Its copies take over when its lease ends (cluster.lease_seconds, 4 s): one write and one read waited {} for that",
                    duration(longest)
                ),
                format!(
                    "{} of {} acknowledged rows are there, and as many new ones were written",
                    count(row as u64),
                    count(ROWS as u64)
                ),
            ],
        )
    }

    fn replace_it(&mut self) -> Result<(), Failure> {
        let gone = self.local.addresses()[1].name.clone();
        let started = Instant::now();
        let new = self.local.add_node()?;
        let admin = AdminClient::new(&self.local.addresses()[0].http)?;
        admin.cluster_request(&ClusterRequest::Set {
            settings: ClusterSettingsChange {
                fill_slots_at_once: Some(FILL_SLOTS_AT_ONCE),
                ..ClusterSettingsChange::default()
            },
        })?;
        admin.cluster_request(&ClusterRequest::Remove {
            node: gone.clone(),
            lose_rows: false,
        })?;
        let name = new.name.clone();
        let well = self.wait_until("the copies are made again", move |status| {
            let is_in = status
                .members
                .iter()
                .any(|it| it.name == name && it.state == "up");
            is_in && is_healthy(status) && status.members.iter().all(|it| it.name != gone)
        })?;
        let found = rows_of(&client(&new))?;
        let gone = self.local.addresses()[1].name.clone();
        let each = well
            .members
            .iter()
            .map(|it| format!("{} {}", it.name, count(u64::from(it.slots_owned))));
        let each = each.collect::<Vec<_>>().join(", ");
        self.story.print_step(
            &format!("{} takes its place", new.name),
            &[
                format!(
                    "larder serve with cluster.node={}, then: larder cluster set fill_slots_at_once={FILL_SLOTS_AT_ONCE} \
                     (128 without, which is kinder to requests) and larder cluster remove {gone}",
                    new.name
                ),
                format!("After {} every slot has {} copies again; slots owned: {each}", duration(started.elapsed()), self.local.replicas()),
                format!("{} rows are read through {}", count(found as u64), new.name),
                "Without `remove`, this happens automatically, cluster.replace_after_seconds (5 minutes) after a node has failed.".to_owned(),
            ],
        )
    }

    fn wait_until(
        &mut self,
        what: &str,
        is_so: impl Fn(&ClusterStatus) -> bool,
    ) -> Result<ClusterStatus, Failure> {
        let admin = AdminClient::new(&self.local.addresses()[0].http)?;
        let started = Instant::now();
        loop {
            let status = admin.cluster()?;
            if is_so(&status) {
                return Ok(status);
            }
            if started.elapsed() > STEP_TIMEOUT {
                return Err(Failure::new(format!(
                    "not within {}: {what}; {}",
                    duration(STEP_TIMEOUT),
                    status.blocked.join("; ")
                )));
            }
            self.wait()?;
        }
    }

    fn wait(&mut self) -> Result<(), Failure> {
        interrupt::wait(POLL_INTERVAL);
        interrupt::check()
    }
}

fn client(node: &NodeAddress) -> RespClient {
    RespClient::new(&node.resp)
}

fn key(row: usize) -> String {
    format!("post|ann|{row:04}")
}

/// Returns how many of the rows exist.
fn rows_of(client: &RespClient) -> Result<usize, Failure> {
    pairs(client.command(&[b"RANGE", b"post|ann|", b"post|ann}"])?)
}

fn pairs(reply: Reply) -> Result<usize, Failure> {
    match reply {
        Reply::Array(items) => Ok(items.len() / 2),
        other => Err(Failure::new(format!("RANGE answered {other:?}"))),
    }
}

fn port(node: &NodeAddress) -> &str {
    node.resp.rsplit_once(':').map_or("", |(_, port)| port)
}

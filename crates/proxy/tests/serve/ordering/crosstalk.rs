//! Every reply reaches its own client, whether other clients send, read or close at that moment.

use std::collections::HashMap;
use std::thread;

use respool_testkit::client::{Reply, RespClient, request};
use respool_testkit::random::{Random, seed};

use crate::target::{Options, Target, on_every_target, proxied};

/// The life of one client: pipelines of random requests whose values carry its name, and now and
/// then a disconnect in the middle of one. No other client has `name`.
fn live(target: &Target, name: &str, pipelines: usize, mut random: Random) {
    let mut client = target.client();
    let mut life = 0;
    let mut model = Model::new(format!("{name}:{life}"));
    for _ in 0..pipelines {
        let depth = 1 + random.below(40) as usize;
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..depth {
            let (args, reply) = model.step(&mut random);
            bytes.extend(request(&args));
            expected.push(reply);
        }
        match random.below(20) {
            // The client leaves in the middle of the replies, or before them: which requests ran is
            // unknown, so its next life has keys of its own.
            0 => {
                let cut = 1 + random.below(bytes.len() as u64) as usize;
                client.send(&bytes[..cut]);
                if random.below(2) == 0 {
                    client.reset();
                }
                client = RespClient::connect(target.address());
                life += 1;
                model = Model::new(format!("{name}:{life}"));
            }
            _ => {
                client.send(&bytes);
                for (at, expected) in expected.iter().enumerate() {
                    let reply = client.reply();
                    assert!(
                        reply == *expected,
                        "{name}: reply {at} of {depth} is {reply:?}, expected {expected:?}"
                    );
                }
            }
        }
    }
}

/// The values of one client's keys.
struct Model {
    name: String,
    step: u64,
    values: HashMap<u64, Vec<u8>>,
    count: i64,
    list: Vec<Reply>,
}

impl Model {
    fn new(name: String) -> Model {
        Model {
            name,
            step: 0,
            values: HashMap::new(),
            count: 0,
            list: Vec::new(),
        }
    }

    /// A value that no other client has, and this one only once.
    fn value(&mut self, random: &mut Random) -> Vec<u8> {
        self.step += 1;
        let mut value = format!("{}/{}/", self.name, self.step).into_bytes();
        let filler = match random.below(20) {
            0 => random.below(40_000),
            1..=4 => random.below(1_000),
            _ => 0,
        };
        // Line ends and type bytes inside, to mislead a search for them.
        value.extend((0..filler).map(|at| b"\r\n$5\r\n:*+-xyz"[at as usize % 13]));
        value
    }

    fn step(&mut self, random: &mut Random) -> (Vec<Vec<u8>>, Reply) {
        let key_number = random.below(4);
        let key = format!("{}:key:{key_number}", self.name);
        let args = |args: &[&[u8]]| args.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>();
        let held =
            |model: &Model, number: u64| model.values.get(&number).map_or(Reply::Null, Reply::bulk);
        match random.below(10) {
            0..=2 => {
                let value = self.value(random);
                let request = args(&[b"SET", key.as_bytes(), &value]);
                self.values.insert(key_number, value);
                (request, Reply::ok())
            }
            3..=5 => (args(&[b"GET", key.as_bytes()]), held(self, key_number)),
            6 => {
                let other = format!("{}:key:{}", self.name, (key_number + 1) % 4);
                let reply = vec![held(self, key_number), held(self, (key_number + 1) % 4)];
                (
                    args(&[b"MGET", key.as_bytes(), other.as_bytes()]),
                    Reply::Array(reply),
                )
            }
            7 => {
                self.count += 1;
                (
                    args(&[b"INCR", format!("{}:count", self.name).as_bytes()]),
                    Reply::Integer(self.count),
                )
            }
            8 => {
                let value = self.value(random);
                (args(&[b"ECHO", &value]), Reply::Bulk(value))
            }
            _ if random.below(2) == 0 => {
                let value = self.value(random);
                let request = args(&[b"RPUSH", format!("{}:list", self.name).as_bytes(), &value]);
                self.list.push(Reply::Bulk(value));
                (request, Reply::Integer(self.list.len() as i64))
            }
            _ => {
                let last = self.list[self.list.len().saturating_sub(3)..].to_vec();
                let list = format!("{}:list", self.name);
                (
                    args(&[b"LRANGE", list.as_bytes(), b"-3", b"-1"]),
                    Reply::Array(last),
                )
            }
        }
    }
}

fn crowd(target: &Target, clients: usize, pipelines: usize) {
    let seed = seed();
    let result = thread::scope(|scope| {
        let lives: Vec<_> = (0..clients)
            .map(|number| {
                let random = Random::new(seed.wrapping_add(number as u64));
                scope.spawn(move || live(target, &format!("client-{number}"), pipelines, random))
            })
            .collect();
        lives
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .filter(Result::is_err)
            .count()
    });
    assert_eq!(
        result, 0,
        "clients that saw a wrong reply; RESPOOL_TEST_SEED={seed} on {}",
        target.name
    );
}

/// Three hundred clients of one worker each get their own replies, in order.
#[test]
fn many_clients_of_one_worker_get_their_own_replies() {
    crowd(&proxied(&Options::with(&["--threads=1"])), 300, 40);
}

/// Three hundred clients of three workers each get their own replies, in order.
#[test]
fn many_clients_of_three_workers_get_own_replies() {
    crowd(&proxied(&Options::with(&["--threads=3"])), 300, 40);
}

/// With batches that never wait, clients each get their own replies, in order.
#[test]
fn clients_of_immediate_batches_get_their_own_replies() {
    crowd(
        &proxied(&Options::with(&["--threads=2", "--flush-rule=latency"])),
        100,
        40,
    );
}

#[test]
fn clients_of_every_server_each_get_their_own_replies_in_order() {
    on_every_target(&Options::with(&["--threads=2"]), |target| {
        crowd(target, 60, 25)
    });
}

//! What is asked of servers among which keys are divided, whoever divides them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use respool_lab::servers::Server;

use super::client::{Client, Value, words};
use super::target::{Random, seed};

/// Asks all servers behind an address, and a single one of the same kind, the same random requests, and compares the answers.
/// Returns how many keys there are at the end.
pub(crate) fn answers_like_one_server(binary: &Path, address: SocketAddr) -> Value {
    let model = Server::start(binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let seed = seed();
    let mut random = Random::new(seed);
    let mut one = Client::connect(address);
    let mut other = Client::connect(model.address());
    for round in 0..150 {
        let count = 1 + random.below(40) as usize;
        let requests: Vec<u8> = (0..count).flat_map(|_| some_request(&mut random)).collect();
        let got = one.exchange(requests.clone(), count);
        let got: Vec<Value> = got.iter().map(without_server).collect();
        let expected = other.exchange(requests.clone(), count);
        assert_eq!(
            got,
            expected,
            "round {round}, RESPOOL_TEST_SEED={seed}: {}",
            String::from_utf8_lossy(&requests)
        );
    }
    other.call("DBSIZE")
}

/// Of a part that failed respool names the server; one server does not.
fn without_server(value: &Value) -> Value {
    match value.error() {
        Some(error) if error.contains(" respool: 127.0.0.1:") => {
            let (code, rest) = error.split_once(" respool: ").unwrap_or_default();
            let (_, rest) = rest.split_once(": ").unwrap_or_default();
            Value::Error(format!("{code} {rest}"))
        }
        _ => value.clone(),
    }
}

/// Each of many clients writes keys of its own and reads what it wrote.
pub(crate) fn many_clients_get_their_own_answers(address: SocketAddr) {
    let seed = seed();
    std::thread::scope(|scope| {
        for number in 0..16 {
            scope.spawn(move || {
                let mut client = Client::connect(address);
                let mut random = Random::new(seed.wrapping_add(number));
                let mut model: HashMap<String, String> = HashMap::new();
                for _ in 0..60 {
                    let (mut requests, mut expected) = (Vec::new(), Vec::new());
                    for _ in 0..30 {
                        let key = format!("{number}:{}", random.below(20));
                        let other = format!("{number}:{}", random.below(20));
                        let held = |key: &str| model.get(key).map_or(Value::Null, Value::bulk);
                        match random.below(3) {
                            0 => {
                                requests.extend(words(&format!("MGET {key} {other}")));
                                expected.push(Value::Array(vec![held(&key), held(&other)]));
                            }
                            1 => {
                                requests.extend(words(&format!("GET {key}")));
                                expected.push(held(&key));
                            }
                            _ => {
                                let value = random.below(1_000_000).to_string();
                                requests.extend(words(&format!("SET {key} {value}")));
                                model.insert(key, value);
                                expected.push(Value::ok());
                            }
                        }
                    }
                    let got = client.exchange(requests, 30);
                    assert_eq!(got, expected, "RESPOOL_TEST_SEED={seed}");
                }
            });
        }
    });
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
    let Value::Array(elements) = value else {
        panic!("no array: {value:?}")
    };
    elements.iter().map(text).collect()
}

pub(crate) fn text(value: &Value) -> String {
    let Value::Bulk(bytes) = value else {
        panic!("no text: {value:?}")
    };
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks all of it in one pipeline, `;` between two requests.
pub(crate) fn pipelined(client: &mut Client, requests: &str) -> Vec<Value> {
    let count = requests.split(';').count();
    client.exchange(requests.split(';').flat_map(words).collect(), count)
}

/// Random requests of one client for few keys.
fn some_request(random: &mut Random) -> Vec<u8> {
    let mut key = || format!("k{}", random.below(30));
    let (one, two, three) = (key(), key(), key());
    let number = random.below(1_000);
    words(&match random.below(16) {
        0..3 => format!("SET {one} {number}"),
        3..6 => format!("GET {one}"),
        6 => format!("INCR {one}"),
        7 => format!("APPEND {one} {number}"),
        8 => format!("MGET {one} {two} {three} {one}"),
        9 => format!("MSET {one} {number} {two} b {one} c"),
        10 => format!("DEL {one} {two} {one}"),
        11 => format!("EXISTS {one} {two} {three} {one}"),
        12 => format!("RPUSH {one} {number}"),
        13 => format!("LRANGE {one} 0 -1"),
        14 => format!("UNLINK {one} {two}"),
        _ => format!("TOUCH {one} {two} {three}"),
    })
}

//! Keys go where twemproxy itself has put them: `hashing/twemproxy.txt`, whose head says what is in it.
//!
//! The lab's test of the same name asks twemproxy anew, many more keys; it needs the program.

use respool_protocol::hashing::{Distribution, Hash, HashTag, Node, Placement};

/// For every hash function and distribution by key, on lists of servers of all kinds.
#[test]
fn keys_are_placed_as_twemproxy_placed_them() {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut tag = None;
    let mut nodes = Vec::new();
    let mut checked = 0;
    for line in include_str!("hashing/twemproxy.txt").lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" | "#" => {}
            "key" => keys.push(bytes(rest)),
            "list" => {
                tag = rest.split(' ').next().and_then(HashTag::named);
                nodes.clear();
            }
            "server" => nodes.push(Node::parse(rest).expect(rest)),
            _ => {
                let hash = Hash::named(word).expect(word);
                let (distribution, servers) = rest.split_once(' ').expect(line);
                let distribution = Distribution::named(distribution).expect(line);
                let placement = Placement::twemproxy(hash, distribution, tag, &nodes)
                    .expect("twemproxy took this list, too");
                assert_eq!(servers.len(), keys.len());
                for (key, server) in keys.iter().zip(servers.chars()) {
                    let theirs = server.to_digit(36).expect(line) as usize;
                    let ours = placement.server_of(key, || unreachable!("the key decides"));
                    assert_eq!(
                        ours,
                        theirs,
                        "{hash:?}, {distribution:?}, key \"{}\", tag {tag:?}, servers {nodes:#?}",
                        key.escape_ascii()
                    );
                }
                checked += 1;
            }
        }
    }
    let by_key = Distribution::ALL.len() - 1;
    assert_eq!(checked, 11 * Hash::ALL.len() * by_key);
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect(hex);
    (0..hex.len()).step_by(2).map(digit).collect()
}

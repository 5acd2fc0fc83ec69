//! Keys are placed as by twemproxy itself. Its placements are in `hashing/twemproxy.txt`, whose
//! head describes them.
//!
//! The lab's test of the same name compares many more keys with a running twemproxy.

use respool_protocol::hashing::{
    Distribution, Hash, HashTag, Placement, PredixyHash, TwemproxyNode,
};

/// Keys are placed as by twemproxy, for each hash function and each distribution by key, on all
/// kinds of server lists.
#[test]
fn keys_are_placed_as_by_twemproxy() {
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
            "server" => nodes.push(TwemproxyNode::parse(rest).expect(rest)),
            _ => {
                let hash = Hash::named(word).expect(word);
                let (distribution, servers) = rest.split_once(' ').expect(line);
                let distribution = Distribution::named(distribution).expect(line);
                let placement = Placement::twemproxy(hash, distribution, tag, &nodes)
                    .expect("twemproxy accepted this list, too");
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

/// Keys are placed by predixy's rule. The expected servers were computed by another program from
/// predixy's source (`Hash::hashTagStr`, `Hash::hash`, and the remainder of an unsigned number in
/// `StandaloneServerPool::getServer`).
#[test]
fn keys_are_placed_by_predixys_rule() {
    // CRC-16/XMODEM of these nine digits is 0x31c3.
    for (digits, crc16) in [("123456789", 0x31c3), ("", 0), ("a", 0x7c87)] {
        assert_eq!(PredixyHash::Crc16.of(digits.as_bytes()), crc16);
    }
    // The server among 2, 3, 5 and 16: by crc16 and atol with {}, and by crc16 and atol of the
    // whole key.
    type Places = [usize; 4];
    #[rustfmt::skip]
    let vectors: [(&[u8], Places, Places, Places, Places); 19] = [
        (b"",                      [0, 0, 0, 0],  [0, 0, 0, 0],  [0, 0, 0, 0],  [0, 0, 0, 0]),
        (b"123456789",             [1, 1, 4, 3],  [1, 0, 4, 5],  [1, 1, 4, 3],  [1, 0, 4, 5]),
        (b"user:1000",             [1, 0, 3, 1],  [0, 0, 0, 0],  [1, 0, 3, 1],  [0, 0, 0, 0]),
        (b"{user:1000}.following", [1, 0, 3, 1],  [0, 0, 0, 0],  [1, 1, 0, 13], [0, 0, 0, 0]),
        (b"foo{}{bar}",            [1, 2, 0, 11], [0, 0, 0, 0],  [1, 2, 0, 11], [0, 0, 0, 0]),
        (b"foo{{bar}}zap",         [1, 1, 2, 15], [0, 0, 0, 0],  [0, 2, 4, 10], [0, 0, 0, 0]),
        (b"foo{bar}{zap}",         [1, 2, 4, 5],  [0, 0, 0, 0],  [0, 0, 2, 2],  [0, 0, 0, 0]),
        (b"{open",                 [0, 0, 1, 10], [0, 0, 0, 0],  [0, 0, 1, 10], [0, 0, 0, 0]),
        (b"close}{",               [1, 1, 2, 13], [0, 0, 0, 0],  [1, 1, 2, 13], [0, 0, 0, 0]),
        (b"a",                     [1, 1, 4, 7],  [0, 0, 0, 0],  [1, 1, 4, 7],  [0, 0, 0, 0]),
        (b"\xff\x00\x80",          [1, 2, 4, 11], [0, 0, 0, 0],  [1, 2, 4, 11], [0, 0, 0, 0]),
        (b"42",                    [0, 2, 2, 0],  [0, 0, 2, 10], [0, 2, 2, 0],  [0, 0, 2, 10]),
        (b"42:x",                  [0, 2, 1, 12], [0, 0, 2, 10], [0, 2, 1, 12], [0, 0, 2, 10]),
        (b"x42",                   [1, 2, 2, 9],  [0, 0, 0, 0],  [1, 2, 2, 9],  [0, 0, 0, 0]),
        (b"-42",                   [1, 2, 2, 7],  [0, 1, 4, 6],  [1, 2, 2, 7],  [0, 1, 4, 6]),
        (b"+42",                   [1, 0, 3, 7],  [0, 0, 2, 10], [1, 0, 3, 7],  [0, 0, 2, 10]),
        (b"7{13}",                 [0, 1, 1, 4],  [1, 1, 3, 13], [1, 1, 0, 9],  [1, 1, 2, 7]),
        (b"18446744073709551617",  [1, 2, 2, 5],  [1, 1, 1, 1],  [1, 2, 2, 5],  [1, 1, 1, 1]),
        (b"-1",                    [0, 1, 1, 8],  [1, 0, 0, 15], [0, 1, 1, 8],  [1, 0, 0, 15]),
    ];
    let braces = HashTag::named("{}");
    let rules = [
        (PredixyHash::Crc16, braces),
        (PredixyHash::Atol, braces),
        (PredixyHash::Crc16, None),
        (PredixyHash::Atol, None),
    ];
    for (at, servers) in [2, 3, 5, 16].into_iter().enumerate() {
        for (rule, (hash, tag)) in rules.into_iter().enumerate() {
            let placement = Placement::predixy(hash, tag, servers).expect("a valid number");
            for (key, one, two, three, four) in vectors {
                let ours = placement.server_of(key, || unreachable!("the key decides"));
                let theirs = [one, two, three, four][rule][at];
                let key = key.escape_ascii();
                assert_eq!(ours, theirs, "{hash:?}, {tag:?}, {servers}: {key}");
            }
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect(hex);
    (0..hex.len()).step_by(2).map(digit).collect()
}

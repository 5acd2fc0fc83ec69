//! No input makes the parsers of a Sentinel's answers and messages panic. All values that they read
//! are within their bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use respool_protocol::sentinel::{
    CHANNELS, Endpoint, FailoverEvent, HOST_BYTES_MAX, Message, NAME_BYTES_MAX, Primary,
    Replica, ReportedRole, SURVEY_ANSWERS, SentinelPeer, Survey, read_address, read_id,
};

/// The fields that are read of primaries, replicas and Sentinels, each with a valid value.
const FIELDS: [(&str, &str); 15] = [
    ("name", "m"),
    ("ip", "h"),
    ("port", "1"),
    ("runid", "a"),
    ("flags", "failover_in_progress"),
    ("role-reported", "slave"),
    ("config-epoch", "1"),
    ("num-slaves", "1"),
    ("num-other-sentinels", "1"),
    ("quorum", "1"),
    ("master-link-status", "ok"),
    ("master-host", "h"),
    ("master-port", "1"),
    ("slave-priority", "1"),
    ("slave-repl-offset", "1"),
];

// The first byte selects the reader, and whether the rest is an answer or the values of one. For an
// event, the second byte selects the channel.
fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let mut values = bytes.split(|&byte| byte == 0xff);
    let list = match choice & 8 {
        0 => bytes.to_vec(),
        _ => list(&mut values),
    };
    match choice % 8 {
        0 => {
            let answer = if choice & 8 == 0 { bytes } else { &list[4..] };
            Primary::read(answer).iter().for_each(check_primary);
        }
        1 => Primary::read_all(&list)
            .iter()
            .flatten()
            .for_each(check_primary),
        2 => Replica::read_all(&list)
            .iter()
            .flatten()
            .for_each(|replica| {
                check_endpoint(&replica.endpoint);
                check_endpoint(&replica.of);
                assert!(!replica.is_usable() || replica.endpoint.is_some());
            }),
        3 => SentinelPeer::read_all(&list)
            .iter()
            .for_each(|peers| check_peers(peers)),
        4 => match ReportedRole::read(bytes) {
            Ok(ReportedRole::Primary { replicas, .. }) => replicas
                .into_iter()
                .for_each(|(at, _)| check_endpoint(&Some(at))),
            Ok(ReportedRole::Replica { of, .. }) => check_endpoint(&of),
            Ok(ReportedRole::Sentinel { names }) => names.iter().for_each(|name| check_name(name)),
            Err(error) => assert!(!error.to_string().is_empty()),
        },
        5 => {
            if let Ok(Message::Event(event)) = Message::read(bytes) {
                check_event(&event);
            }
        }
        6 => {
            let Some((&channel, text)) = bytes.split_first() else {
                return;
            };
            let channel = CHANNELS[usize::from(channel) % CHANNELS.len()];
            if let Ok(event) = FailoverEvent::read(channel.as_bytes(), text) {
                check_event(&event.expect("every channel has an event"));
            }
        }
        _ => check_survey(bytes),
    }
});

/// An answer with one entry that has all fields. An empty value is replaced by the valid one.
fn list<'a>(values: &mut impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut answer = format!("*1\r\n%{}\r\n", FIELDS.len()).into_bytes();
    for (field, usual) in FIELDS {
        answer.extend_from_slice(format!("+{field}\r\n").as_bytes());
        let usual = format!("+{usual}\r\n");
        answer.extend_from_slice(value(values).unwrap_or(usual.as_bytes()));
    }
    answer
}

/// The next value, unless it is empty.
fn value<'a>(values: &mut impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    values.next().filter(|value| !value.is_empty())
}

/// Reads the answers of a survey.
fn check_survey(bytes: &[u8]) {
    let mut values = bytes.split(|&byte| byte == 0xff);
    let address = value(&mut values).unwrap_or(b"*2\r\n+h\r\n+2\r\n");
    let id = value(&mut values).unwrap_or(b"+a\r\n");
    let (primary, peers, replicas) = (list(&mut values), list(&mut values), list(&mut values));
    let answers: [&[u8]; SURVEY_ANSWERS] = [&primary[4..], address, &peers, &replicas, id];
    let _ = read_id(id);
    check_endpoint(&read_address(address).ok());
    let Ok(survey) = Survey::read(answers) else {
        return;
    };
    check_primary(&survey.primary);
    survey.peers.iter().for_each(|peers| check_peers(peers));
}

fn check_peers(peers: &[SentinelPeer]) {
    for peer in peers {
        check_endpoint(&peer.endpoint);
    }
}

fn check_primary(primary: &Primary) {
    check_name(&primary.name);
    check_endpoint(&primary.endpoint);
}

fn check_event(event: &FailoverEvent) {
    check_name(event.name());
    match event {
        FailoverEvent::Switched { from, to, .. } => {
            check_endpoint(from);
            check_endpoint(to);
        }
        FailoverEvent::Promoted { to, .. } => check_endpoint(to),
        FailoverEvent::Down { instance, .. }
        | FailoverEvent::Up { instance, .. }
        | FailoverEvent::Rebooted { instance } => {
            check_endpoint(&instance.endpoint);
        }
        _ => {}
    }
}

fn check_name(name: &str) {
    assert!((1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(' '));
}

fn check_endpoint(at: &Option<Endpoint>) {
    if let Some(Endpoint { host, port }) = at {
        assert!(*port > 0 && (1..=HOST_BYTES_MAX).contains(&host.len()));
        assert!(host.bytes().all(|byte| byte.is_ascii_graphic()));
    }
}

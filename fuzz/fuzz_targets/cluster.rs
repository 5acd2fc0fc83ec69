//! Any bytes are a valid view of a Cluster or an error. Results that derive from a view are valid,
//! too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use respool_protocol::cluster::{Info, NodeRole, Redirect, Refusal, View};
use respool_protocol::slot::SLOTS;

// The first byte selects the command, and whether the rest is wrapped as a bulk string.
fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let text = [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let answer = if choice & 4 == 0 { bytes } else { &text };
    let read = match choice % 4 {
        0 => View::from_slots,
        1 => View::from_shards,
        2 => View::from_nodes,
        _ => {
            if let Some(redirect) = Redirect::read(bytes) {
                assert!(redirect.slot < SLOTS && redirect.port > 0);
                assert!(matches!(
                    Refusal::of(bytes),
                    Some(Refusal::Moved | Refusal::Ask)
                ));
            }
            let _ = Info::read(answer);
            return;
        }
    };
    let Ok(view) = read(answer, "asked") else {
        return;
    };
    check(&view);
    let usable = view.usable();
    check(&usable);
    for slot in 0..SLOTS {
        let owner = view.owner_of(slot).filter(|node| node.is_usable());
        let kept = usable.owner_of(slot);
        assert_eq!(kept.map(|node| &node.endpoint), owner.map(|node| &node.endpoint));
    }
});

/// Asserts that each index has a node, and that the ranges give the table of owners.
fn check(view: &View) {
    let count = view.nodes().len();
    for node in view.nodes() {
        assert!(node.endpoint.as_ref().is_none_or(|at| at.port > 0));
        if let NodeRole::Replica { of: Some(of) } = node.role {
            assert!(usize::from(of) < count);
        }
    }
    let again = View::new(view.nodes().to_vec(), view.ranges()).expect("a valid view");
    assert_eq!(again.owners(), view.owners());
}

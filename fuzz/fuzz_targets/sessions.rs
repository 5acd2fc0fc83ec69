//! Complete sessions at extreme limits keep the rules of the module `whole`. The fuzzer's bytes are
//! the choices.
#![no_main]

#[path = "../../crates/engine/tests/engine/whole/mod.rs"]
mod whole;

use libfuzzer_sys::fuzz_target;
use whole::Choices;

/// More steps than the bytes of an input can choose.
const STEPS: usize = 10_000;

fuzz_target!(|input: &[u8]| whole::run(Choices::Bytes(input), None, STEPS, false));

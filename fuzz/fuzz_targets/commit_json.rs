//! See `targets::commit_json`.
#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(init: targets::tell_panics(), |data: &[u8]| targets::commit_json(data));

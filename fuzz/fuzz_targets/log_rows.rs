//! See `targets::log_rows`.
#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(init: targets::tell_panics(), |data: &[u8]| targets::log_rows(data));

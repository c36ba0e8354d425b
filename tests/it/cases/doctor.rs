//! `doctor`: one report about a store, well or not, without data and secrets.

use serde_json::{Value, json};

use super::program::{change, finish, program, succeed};
use crate::support::stores::Home;

fn report(home: &Home) -> (Value, String) {
    let mut command = program(home, &["doctor"]);
    command.env("ALLUVIUM_TAIL_BYTES", "1MiB").env("AWS_SECRET_ACCESS_KEY", "hidden-secret");
    let output = finish(command, "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    (serde_json::from_str(&text).unwrap(), text)
}

#[test]
fn the_doctor_tells_versions_settings_and_tables_and_neither_data_nor_secrets() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("a-private-key", 1, 4_711_815));
    succeed(&home, &["materialize", "s"], "");
    let (found, text) = report(&home);
    assert_eq!(found["alluvium"], json!(env!("CARGO_PKG_VERSION")));
    assert_eq!(found["errors"], json!([]));
    let state = &found["states"][0];
    assert_eq!((&state["state"], &state["opens"]), (&json!("s"), &json!(true)));
    assert_eq!((&state["log"]["version"], &state["snapshot"]["version"]), (&json!(1), &json!(1)));
    assert_eq!(state["log"]["properties"]["alluvium.formatVersion"], json!("1"));
    let settings = found["settings"].as_array().unwrap();
    let tail = settings.iter().find(|setting| setting["name"] == "tail_bytes").unwrap();
    assert_eq!(tail["source"], json!("environment"));
    let checks = found["checks"].as_array().unwrap();
    assert!(checks.len() >= 4 && checks.iter().all(|check| check["ok"] == true), "{checks:?}");
    for hidden in ["a-private-key", "4711815", "hidden-secret"] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}

#[test]
fn the_doctor_tells_what_is_wrong_and_goes_on() {
    let home = Home::new();
    for state in ["bad", "good"] {
        for version in 1..=3 {
            succeed(&home, &["append", state], &change("k", version, version));
        }
    }
    std::fs::remove_file(home.commit_file("bad", 2)).unwrap();
    let (found, _) = report(&home);
    let opens: Vec<&Value> =
        found["states"].as_array().unwrap().iter().map(|state| &state["opens"]).collect();
    assert_eq!(opens, [&json!(false), &json!(true)]);
    let error = &found["errors"][0];
    assert_eq!((&error["while"], &error["exit_code"]), (&json!("opening bad"), &json!(6)));
    assert!(error["error"][0].as_str().unwrap().contains("00000000000000000002.json"), "{error}");
}

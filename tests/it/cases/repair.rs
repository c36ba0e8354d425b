//! `verify --deep` and `repair`, as an operator types them.

use serde_json::{Value, json};

use super::program::{change, fail, finish, lines, program, succeed};
use crate::support::stores::Home;

fn filled(home: &Home) {
    for n in 1..=4 {
        succeed(home, &["append", "s"], &change(&format!("k{n}"), n, n));
    }
    succeed(home, &["materialize", "s"], "");
    succeed(home, &["append", "s"], &change("k5", 5, 5));
}

/// What a verb writes that ends with an exit code, and what it complains about.
fn told(home: &Home, arguments: &[&str], code: i32) -> (Value, String) {
    let output = finish(program(home, arguments), "");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    (serde_json::from_slice(&output.stdout).unwrap(), message)
}

#[test]
fn a_sound_store_is_told_so_and_nothing_is_repaired() {
    let home = Home::new();
    filled(&home);
    let (found, _) = told(&home, &["verify", "--deep"], 0);
    assert_eq!((&found["state"], &found["damaged"]), (&json!("s"), &json!([])));
    assert!(found["files"].as_u64().unwrap() >= 12, "{found}");
    let (done, _) = told(&home, &["repair", "s"], 0);
    assert_eq!((&done["steps"], &done["unrepaired"]), (&json!([]), &json!([])));
    let table = succeed(&home, &["verify", "--deep", "--output", "table"], "");
    assert!(table.contains("no file is damaged"), "{table}");
    fail(&home, &["repair", "nothing"], "", 3, &["nothing"]);
    fail(&home, &["verify", "--deep", "nothing"], "", 3, &["nothing"]);
}

#[test]
fn a_torn_last_commit_is_refused_told_and_set_aside() {
    let home = Home::new();
    filled(&home);
    let last = home.commit_file("s", 5);
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() / 2]).unwrap();
    let name = "00000000000000000005.json";
    fail(&home, &["get", "s", "k1"], "", 6, &[name, "alluvium repair"]);
    fail(&home, &["append", "s"], &change("k6", 6, 6), 6, &[name]);
    let (found, complaint) = told(&home, &["verify", "--deep", "s"], 6);
    assert_eq!(found["damaged"][0]["file"], json!(format!("s/log/_delta_log/{name}")));
    assert!(complaint.contains(name) && complaint.contains("repair s --dry-run"), "{complaint}");
    let (planned, _) = told(&home, &["repair", "s", "--dry-run"], 0);
    assert_eq!(planned["steps"].as_array().unwrap().len(), 1, "{planned}");
    assert!(last.exists());
    let (done, _) = told(&home, &["repair", "s"], 0);
    let to = done["steps"][0]["moved_to"].as_str().unwrap();
    let kept = std::fs::read(home.folder.path().join(to)).unwrap();
    assert_eq!(kept, bytes[..bytes.len() / 2], "what was damaged is kept");
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 4);
    succeed(&home, &["append", "s"], &change("k5", 5, 5));
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 5);
    told(&home, &["verify", "--deep"], 0);
    succeed(&home, &["verify"], "");
}

#[test]
fn a_last_commit_that_a_snapshot_holds_is_not_given_up() {
    let home = Home::new();
    filled(&home);
    succeed(&home, &["materialize", "s"], "");
    let last = home.commit_file("s", 5);
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() - 9]).unwrap();
    let (done, complaint) = told(&home, &["repair", "s"], 6);
    assert_eq!(done["steps"], json!([]));
    assert!(
        complaint.contains("put back from a copy") && complaint.contains("--commit"),
        "{complaint}"
    );
    assert_eq!(lines(&succeed(&home, &["scan", "s", "--commit", "4"], "")).len(), 4);
    std::fs::write(&last, bytes).unwrap();
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 5);
}

#[test]
fn a_snapshot_that_can_not_be_opened_is_set_aside_whole_and_made_anew() {
    let home = Home::new();
    filled(&home);
    let log = home.table("s", "snapshot").join("_delta_log");
    std::fs::write(log.join("00000000000000000000.json"), "{").unwrap();
    fail(&home, &["scan", "s"], "", 6, &["00000000000000000000.json", "alluvium repair"]);
    let (done, _) = told(&home, &["repair", "s"], 0);
    assert!(done["steps"][0]["remedy"].as_str().unwrap().contains("made anew"), "{done}");
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 5);
    told(&home, &["verify", "--deep"], 0);
    let verified = lines(&succeed(&home, &["verify"], ""));
    assert_eq!(verified[0]["log_commit"], json!(5));
}

#[test]
fn a_lost_file_of_the_log_is_told_with_what_it_means() {
    let home = Home::new();
    filled(&home);
    let day = home.table("s", "log").join("dt=2024-01-15");
    let file = std::fs::read_dir(day).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let (done, complaint) = told(&home, &["repair", "s"], 6);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(done["unrepaired"][0]["file"].as_str().unwrap().ends_with(name), "{done}");
    assert!(complaint.contains("put it back from a copy"), "{complaint}");
    std::fs::write(&file, bytes).unwrap();
    told(&home, &["repair", "s"], 0);
}

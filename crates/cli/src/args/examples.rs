//! The examples of `docs/operations.md` are what this program, cron, systemd and Kubernetes read.

#![allow(clippy::unwrap_used, clippy::panic)]

use clap::Parser;

use super::Cli;

const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

/// The fenced blocks of a language.
fn blocks(language: &str) -> Vec<String> {
    let (mut blocks, mut open): (Vec<String>, Option<String>) = (Vec::new(), None);
    for line in OPERATIONS.lines() {
        match &mut open {
            Some(block) if line == "```" => {
                blocks.push(std::mem::take(block));
                open = None;
            }
            Some(block) => block.push_str(&format!("{line}\n")),
            None if line == format!("```{language}") => open = Some(String::new()),
            None => {}
        }
    }
    assert!(open.is_none() && !blocks.is_empty(), "no whole block of {language}");
    blocks
}

/// A command that the program must take.
fn parses(words: &[&str]) {
    if let Err(error) = Cli::try_parse_from(words) {
        panic!("{words:?}: {error}");
    }
}

/// A command as a line without quotes.
fn command(line: &str) {
    assert!(
        !line.contains(['"', '\'', '%', '$', '\\']),
        "{line}: a shell or systemd reads this otherwise"
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words[0] == "alluvium" || words[0].ends_with("/alluvium"), "{line}");
    parses(&words);
}

/// One of the five fields of a time in cron: numbers, ranges, steps, lists.
fn is_cron_field(field: &str, low: u32, high: u32) -> bool {
    let number = |text: &str| text.parse::<u32>().is_ok_and(|n| (low..=high).contains(&n));
    field.split(',').all(|part| {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (part, None),
        };
        let is_range = match range.split_once('-') {
            Some((from, to)) => number(from) && number(to),
            None => range == "*" || (number(range) && step.is_none()),
        };
        is_range && step.is_none_or(|step| step.parse::<u32>().is_ok_and(|n| 0 < n && n <= high))
    })
}

fn cron_time(fields: &[&str]) {
    assert_eq!(fields.len(), 5, "{fields:?}");
    let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
    for (field, (low, high)) in fields.iter().zip(bounds) {
        assert!(is_cron_field(field, low, high), "{field:?} in {fields:?}");
    }
}

#[test]
fn cron_lines_have_five_fields_and_a_command_of_ours() {
    assert!(is_cron_field("*/10", 0, 59) && is_cron_field("1,5-9/2", 0, 59));
    assert!(
        !is_cron_field("60", 0, 59) && !is_cron_field("*/0", 0, 59) && !is_cron_field("x", 0, 9)
    );
    for line in blocks("cron").iter().flat_map(|block| block.lines()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        cron_time(&fields[..5]);
        command(&fields[5..].join(" "));
    }
}

#[test]
fn systemd_units_have_known_sections_and_keys() {
    const KEYS: [(&str, &[&str]); 3] = [
        ("Unit", &["Description", "After", "Wants"]),
        (
            "Service",
            &[
                "Type",
                "ExecStart",
                "Restart",
                "RestartSec",
                "TimeoutStopSec",
                "User",
                "Environment",
            ],
        ),
        ("Install", &["WantedBy"]),
    ];
    for block in blocks("ini") {
        let (mut section, mut starts) = ("", 0);
        for line in block.lines().filter(|line| !line.is_empty()) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            let known = KEYS.iter().find(|(name, _)| *name == section);
            assert!(known.is_some_and(|(_, keys)| keys.contains(&key)), "[{section}] {line}");
            if key == "ExecStart" {
                starts += 1;
                assert!(value.starts_with('/'), "{value}: systemd wants a whole path");
                command(value);
            }
        }
        assert_eq!(starts, 1, "{block}");
    }
}

#[test]
fn kubernetes_objects_are_cron_jobs_that_run_a_command_of_ours() {
    for block in blocks("yaml") {
        let job: serde_yaml::Value = serde_yaml::from_str(&block).unwrap();
        assert_eq!((&job["apiVersion"], &job["kind"]), (&"batch/v1".into(), &"CronJob".into()));
        assert!(job["metadata"]["name"].is_string());
        let spec = &job["spec"];
        let time: Vec<&str> = spec["schedule"].as_str().unwrap().split_whitespace().collect();
        cron_time(&time);
        let policy = spec["concurrencyPolicy"].as_str().unwrap();
        assert!(["Allow", "Forbid", "Replace"].contains(&policy), "{policy}");
        let pod = &spec["jobTemplate"]["spec"]["template"]["spec"];
        let restart = pod["restartPolicy"].as_str().unwrap();
        assert!(["OnFailure", "Never"].contains(&restart), "{restart}");
        let names = |list: &serde_yaml::Value| -> Vec<String> {
            let list = list.as_sequence().unwrap();
            list.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        let container = &pod["containers"][0];
        assert!(container["image"].is_string());
        assert_eq!(names(&container["volumeMounts"]), names(&pod["volumes"]));
        let args = container["args"].as_sequence().unwrap();
        let words: Vec<&str> = args.iter().map(|arg| arg.as_str().unwrap()).collect();
        parses(&[&["alluvium"], words.as_slice()].concat());
    }
}

#[test]
fn the_file_of_settings_is_one_that_is_read() {
    let folder = std::env::temp_dir().join(format!("alluvium-examples-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for block in blocks("toml") {
        let path = folder.join(alluvium::SETTINGS_FILE);
        std::fs::write(&path, &block).unwrap();
        let read = alluvium::ProcessSettings::load(Some(&path), []).unwrap();
        assert_eq!(read.store.as_deref(), Some("/srv/state"));
        assert_eq!(read.settings.memory_budget_bytes, 1 << 30);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

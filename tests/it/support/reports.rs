//! Reports of the periodic job, and how a dry run's is compared with that of the run after it.

use alluvium::{Error, FailedSteps, MaintainReport, MaintainStep, RawState};
use serde_json::Value;

/// A report without what differs from run to run: how long it took.
pub(crate) fn plain(report: &impl serde::Serialize) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !name.starts_with("elapsed"));
                fields.values_mut().for_each(strip);
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(report).unwrap();
    strip(&mut value);
    value
}

/// What a run tells, whether it failed or not.
pub(crate) fn told(outcome: Result<MaintainReport, Error>) -> (MaintainReport, Option<String>) {
    match outcome {
        Ok(report) => (report, None),
        Err(error) => {
            let report = FailedSteps::report_of(&error);
            (report.unwrap_or_else(|| panic!("{error}")).clone(), Some(error.to_string()))
        }
    }
}

/// Lets the job run dry, then for good, and compares what both tell: everything but that it was dry, and times. Gives the second report.
pub(crate) async fn dry_then_real(
    state: &RawState,
    steps: &[MaintainStep],
    about: &str,
) -> (MaintainReport, Option<String>) {
    let dry = told(state.maintain(steps, true).await);
    assert!(dry.0.dry_run, "{about}");
    let real = told(state.maintain(steps, false).await);
    let mut expected = plain(&real.0);
    expected["dry_run"] = true.into();
    let found = plain(&dry.0);
    let fields = |value: &Value| value.as_object().unwrap().clone();
    for (name, value) in fields(&expected) {
        assert_eq!(found[&name], value, "{about}: {name}");
    }
    assert_eq!(fields(&found).len(), fields(&expected).len(), "{about}");
    assert_eq!(dry.1, real.1, "{about}");
    real
}

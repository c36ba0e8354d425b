//! Forks of a state: each is a world of its own, with a copy of the model's rows up to its commit, and its changes can be brought back.

use std::collections::{BTreeMap, BTreeSet};

use alluvium::{ErrorKind, ForkOutcome, Point, PromoteOptions, PromoteOutcome, PromoteReport};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::expiry::is_promised;
use super::ledger::Ledger;
use super::plan::{Step, step};
use super::run::World;
use super::undo::changes_of;
use crate::support::rows::Value;

/// The forks of a state at once, at most.
const MOST: usize = 2;

/// A fork of a state.
pub(crate) struct Branch {
    pub(crate) world: World,
    /// Its commit up to which the parent has all of its changes: its first own one, or the one that it was promoted as of last.
    since: i64,
    /// It was promoted, as of `since`.
    is_promoted: bool,
    /// What it was made of is there no more.
    is_orphan: bool,
}

/// Makes a fork of the newest commit, or of one that may be too old.
pub(crate) async fn make(world: &mut World, handle: usize) {
    if world.branches.len() >= MOST {
        return;
    }
    world.forked += 1;
    let name = format!("{}-{}", world.name, world.forked);
    let kept: Vec<i64> = world.kept().filter(|kept| *kept >= world.first).collect();
    let old = match world.rng.random_range(0..4) {
        0 => kept.choose(&mut world.rng).copied(),
        1 => Some(world.rng.random_range(world.first..=world.newest)),
        _ => None,
    };
    let (commit, point) =
        (old.unwrap_or(world.newest), old.map_or(Point::LATEST, Point::at_commit));
    let made = world.stores[handle].fork(&world.name, &name, point, false).await;
    let made = match made {
        Ok(made) => made,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
            assert!(commit < world.newest && !world.is_whole_at(commit), "{error}");
            let is_erased = error.to_string().contains("keys were erased up to");
            assert!(is_erased || !world.kept().any(|kept| kept == commit), "{error}");
            return;
        }
    };
    assert_eq!((made.outcome, made.commit), (ForkOutcome::Made, commit));
    assert!(!made.without_log || world.kept().any(|kept| kept == commit), "{made:?}");
    let world_of_fork = world.forked_at(&name, commit, made.without_log).await;
    world.branches.push(Branch {
        world: world_of_fork,
        since: commit + 1,
        is_promoted: false,
        is_orphan: false,
    });
}

fn take(world: &mut World) -> Option<Branch> {
    let index = world.rng.random_range(0..world.branches.len().max(1));
    (index < world.branches.len()).then(|| world.branches.swap_remove(index))
}

/// Some steps in a fork: each but that no time passes.
pub(crate) async fn go_on(world: &mut World) {
    let Some(mut branch) = take(world) else { return };
    for _ in 0..world.rng.random_range(1..=3) {
        let own = &mut branch.world;
        let next = step(&mut own.rng, own.kind, own.traits);
        if !matches!(next, Step::Wait { .. }) {
            own.go(next).await;
        }
    }
    world.branches.push(branch);
}

/// What keys have a value, and which.
fn values(ledger: &Ledger, point: Point) -> BTreeMap<String, Value> {
    let values = ledger.values(point).into_iter();
    values.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// What a promotion has to come to.
struct Wanted {
    /// The keys that become in the parent what they are in the fork.
    keys: BTreeSet<String>,
    /// Those of them that the parent has changed too, to something else.
    conflicts: BTreeSet<String>,
    /// The parent's values afterwards.
    values: BTreeMap<String, Value>,
}

impl Wanted {
    fn of(parent: &Ledger, branch: &Branch) -> Self {
        let base = values(&branch.world.ledger, Point::at_commit(branch.since));
        let theirs = values(&branch.world.ledger, Point::LATEST);
        let ours = values(parent, Point::LATEST);
        let all: BTreeSet<&String> = base.keys().chain(theirs.keys()).collect();
        let is_changed = |key: &&String| {
            base.get(*key) != theirs.get(*key) && ours.get(*key) != theirs.get(*key)
        };
        let keys: BTreeSet<String> = all.into_iter().filter(is_changed).cloned().collect();
        let conflicts = keys.iter().filter(|key| ours.get(*key) != base.get(*key)).cloned();
        let conflicts = conflicts.collect();
        let mut values = ours;
        for key in &keys {
            match theirs.get(key) {
                Some(value) => drop(values.insert(key.clone(), value.clone())),
                None => drop(values.remove(key)),
            }
        }
        Self { keys, conflicts, values }
    }
}

/// Brings back what was changed in a fork.
pub(crate) async fn promote(world: &mut World, handle: usize) {
    let Some(mut branch) = take(world) else { return };
    let wanted = Wanted::of(&world.ledger, &branch);
    let options = PromoteOptions { overwrite: world.rng.random_bool(0.5), dry_run: false };
    let outcome = world.stores[handle].promote_fork(&branch.world.name, &options).await;
    let again = branch.is_promoted && branch.since >= branch.world.newest;
    match outcome {
        Err(error) if branch.is_orphan => {
            // A handle that had it open says that it is another one by now.
            let is_gone = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IdentityChanged);
            assert!(is_gone, "{error}");
        }
        Err(error) if error.kind() == ErrorKind::PointUnavailable => {
            let base = Point::at_commit(branch.since);
            let is_gone = world.kind.expires && !is_promised(&branch.world, base);
            assert!(is_gone && !again, "{error}");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let named = |key: &String| error.to_string().contains(&format!("{key:?}"));
            assert!(!options.overwrite && wanted.conflicts.iter().any(named), "{error}");
        }
        Ok(report) => {
            assert!(!branch.is_orphan, "{report:?}");
            let conflicts = if again { 0 } else { wanted.conflicts.len() as u64 };
            assert!(options.overwrite || conflicts == 0, "{report:?}");
            assert_eq!(report.overwritten, conflicts, "{report:?}");
            match report.outcome {
                PromoteOutcome::AlreadyApplied => assert!(again, "{report:?}"),
                PromoteOutcome::NothingToDo => {
                    assert!(!again && wanted.keys.is_empty(), "{report:?}")
                }
                _ => promoted(world, &mut branch, wanted, &report).await,
            }
        }
    }
    world.branches.push(branch);
}

/// Takes the commit of a promotion into the model, which must have come to what was wanted.
async fn promoted(world: &mut World, branch: &mut Branch, wanted: Wanted, report: &PromoteReport) {
    assert_eq!(report.outcome, PromoteOutcome::Promoted);
    world.newest += 1;
    assert_eq!((report.commit, report.before_commit), (Some(world.newest), world.newest - 1));
    let fork_commits = (report.since_commit, report.fork_commit);
    assert_eq!(fork_commits, (branch.since, branch.world.newest));
    assert_eq!(report.upserted + report.deleted, wanted.keys.len() as u64, "{report:?}");
    let rows = world.rows_of_newest(&world.handles[0]).await;
    assert!(rows.iter().map(|row| &row.key).eq(&wanted.keys), "{rows:?}");
    let app = rows[0].app.clone().filter(|app| app.starts_with("promote/")).unwrap();
    let epoch = Some((app, branch.world.newest));
    world.ledger.add(world.newest, &changes_of(&rows), epoch);
    assert_eq!(values(&world.ledger, Point::LATEST), wanted.values, "{report:?}");
    (branch.since, branch.is_promoted) = (branch.world.newest, true);
}

/// Drops a fork; those that were made of it stay.
pub(crate) async fn drop_one(world: &mut World, handle: usize) {
    let Some(branch) = take(world) else { return };
    let own = branch.world;
    for state in &own.handles {
        state.log().close().await;
    }
    let store = &world.stores[handle];
    store.drop_fork(&own.name).await.unwrap();
    let forks = store.forks().await.unwrap();
    assert!(forks.iter().all(|fork| fork.name != own.name), "{forks:?}");
    assert!(!store.state_names().await.unwrap().contains(&own.name));
    let orphans = own.branches.into_iter().map(|branch| Branch { is_orphan: true, ..branch });
    world.branches.extend(orphans);
}

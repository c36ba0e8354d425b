#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use object_store::ObjectStoreExt;

use super::disk::{Step, steps_below};
use super::*;

#[test]
fn a_bare_relative_name_lies_in_the_current_folder() {
    assert_eq!(folder_of(FsPath::new("store")), Some(FsPath::new(".")));
    assert_eq!(folder_of(FsPath::new("a/b")), Some(FsPath::new("a")));
    assert_eq!(folder_of(FsPath::new("/")), None);
}

#[test]
fn a_folder_is_made_with_those_above_it() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("a b/c%20d/é");
    create_folder(&folder, Durability::Fsync).unwrap();
    assert!(folder.is_dir());
}

#[test]
fn a_sync_asks_the_operating_system() {
    // What can't be synced says so, if it is asked.
    let null = FsPath::new("/dev/null");
    assert!(disk::sync(null, &File::open(null).unwrap()).is_err());
    assert!(disk::sync_folder(null).is_err());
}

/// What a disk holds that loses power, by what was done to it: whatever was not synced may be gone.
#[derive(Default)]
struct Disk {
    /// The files by name, as everybody sees them.
    names: BTreeMap<PathBuf, usize>,
    /// The names of folders and files that are sure to be there.
    durable: BTreeMap<PathBuf, usize>,
    /// Files of which bytes were written and not synced.
    dirty: BTreeSet<usize>,
    files: usize,
}

impl Disk {
    /// `others` are folders that were there before, made by others.
    fn after(steps: &[Step], others: &[PathBuf]) -> Self {
        let mut disk = Self::default();
        for folder in others {
            disk.apply(&Step::Made(folder.clone()));
        }
        for step in steps {
            disk.apply(step);
        }
        disk
    }

    fn number(&mut self, path: &FsPath) -> usize {
        if let Some(number) = self.names.get(path) {
            return *number;
        }
        // Written by `object_store`.
        self.files += 1;
        self.names.insert(path.to_owned(), self.files);
        self.dirty.insert(self.files);
        self.files
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Made(path) => {
                self.names.remove(path);
                let number = self.number(path);
                // Nothing is in it yet.
                self.dirty.remove(&number);
            }
            Step::Written(path) => {
                let number = self.number(path);
                self.dirty.insert(number);
            }
            Step::Synced(path) => {
                let number = self.number(path);
                self.dirty.remove(&number);
            }
            Step::FolderSynced(folder) => {
                let inside = |path: &FsPath| path.parent() == Some(folder);
                self.durable.retain(|path, _| !inside(path));
                let now = self.names.iter().filter(|(path, _)| inside(path));
                self.durable.extend(now.map(|(path, number)| (path.clone(), *number)));
            }
            Step::Linked(from, to) => {
                let number = self.number(from);
                self.names.insert(to.clone(), number);
            }
            Step::Removed(path) => {
                self.names.remove(path);
            }
        }
    }

    /// Whether a file is there after a power loss, under its name and whole.
    fn keeps(&self, root: &FsPath, path: &FsPath) -> bool {
        let is_whole = self.durable.get(path).is_some_and(|number| !self.dirty.contains(number));
        let mut above = path.ancestors().skip(1).take_while(|folder| *folder != root);
        is_whole && above.all(|folder| self.durable.contains_key(folder))
    }
}

async fn put(store: &LocalStore, path: &Path, bytes: &'static str, mode: PutMode) {
    let options = PutOptions { mode, ..Default::default() };
    store.put_opts(path, bytes.into(), options).await.unwrap();
}

async fn put_in_parts(store: &LocalStore, path: &Path) {
    let mut upload = store.put_multipart(path).await.unwrap();
    upload.put_part("one".into()).await.unwrap();
    upload.complete().await.unwrap();
}

#[tokio::test]
async fn what_is_acknowledged_survives_a_power_loss_with_its_folders() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap();
    let store = LocalStore::open(&root, Durability::Fsync).unwrap();
    let theirs = ["theirs", "theirs/log"].map(|folder| root.join(folder));
    let check = |path: &Path, what: &str| {
        let steps = steps_below(&root);
        let disk = Disk::after(&steps, &theirs);
        assert!(disk.keeps(&root, &root.join(path.as_ref())), "{what}: {steps:#?}");
    };
    // Another process has made a folder, and not come to sync it.
    fs::create_dir_all(&theirs[1]).unwrap();
    for state in ["ours", "theirs"] {
        let commit = Path::from(format!("{state}/log/_delta_log/00000000000000000000.json"));
        put(&store, &commit, "{}", PutMode::Create).await;
        check(&commit, "a commit");
        for day in ["dt=2024-01-15", "dt=2024-01-16"] {
            let data = Path::from(format!("{state}/log/{day}/a.parquet"));
            put(&store, &data, "rows", PutMode::Create).await;
            check(&data, "a data file");
        }
        let hint = Path::from(format!("{state}/log/_delta_log/_last_checkpoint"));
        for text in ["1", "2"] {
            put(&store, &hint, text, PutMode::Overwrite).await;
            check(&hint, "a hint");
        }
        let large = Path::from(format!("{state}/parts/large.parquet"));
        put_in_parts(&store, &large).await;
        check(&large, "a file in parts");
        let copy = Path::from(format!("{state}/copies/a"));
        store.copy(&hint, &copy).await.unwrap();
        check(&copy, "a copy");
    }
}

#[tokio::test]
async fn without_durability_nothing_is_synced_and_a_folder_is_synced_once_by_each_process() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap();
    let commit = |n: usize| Path::from(format!("s/log/_delta_log/{n:020}.json"));
    let syncs = || {
        let steps = steps_below(&root);
        let is_sync = |step: &&Step| matches!(step, Step::Synced(_) | Step::FolderSynced(_));
        steps.iter().filter(is_sync).count()
    };
    let quick = LocalStore::open(&root, Durability::Os).unwrap();
    put(&quick, &commit(0), "{}", PutMode::Create).await;
    put_in_parts(&quick, &Path::from("s/large")).await;
    assert_eq!(syncs(), 0);
    let store = LocalStore::open(&root, Durability::Fsync).unwrap();
    put(&store, &commit(1), "{}", PutMode::Create).await;
    // The file, its folder, and the three above that hold the folders' names.
    assert_eq!(syncs(), 5);
    put(&store, &commit(2), "{}", PutMode::Create).await;
    assert_eq!(syncs(), 7);
}

fn table_of(store: &Arc<LocalStore>) -> LocalTable {
    LocalTable::new(store.clone(), &Path::from("s/log"))
}

fn path_of(root: &FsPath, path: &Path) -> PathBuf {
    root.join("s/log").join(path.as_ref())
}

#[tokio::test]
async fn a_commit_gets_its_name_when_all_that_belongs_to_it_is_durable() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap();
    let table = table_of(&Arc::new(LocalStore::open(&root, Durability::Fsync).unwrap()));
    for number in 0..4 {
        let commit = Path::from(format!("_delta_log/{number:020}.json"));
        let files = ["15/a", "15/b", "16/a"]
            .map(|at| Path::from(format!("dt=2024-01-{at}-{number}.parquet")));
        let mut written = Vec::new();
        for file in &files {
            // Some are written before, some with the commit, some in between.
            written.push(match number {
                0 | 1 => table.write(file, "rows".into()).await.unwrap(),
                _ => table.write_later(file, "rows".into()).unwrap(),
            });
        }
        if number == 3 {
            table.ensure_written(written[1..].to_vec()).await.unwrap();
            assert_eq!(fs::read(path_of(&root, &files[1])).unwrap(), b"rows");
        }
        let before = steps_below(&root).len();
        table.commit(&commit, "{}".into(), written).await.unwrap();
        let steps = steps_below(&root);
        let commit = path_of(&root, &commit);
        let named =
            steps.iter().position(|step| matches!(step, Step::Linked(_, to) if *to == commit));
        let named = named.unwrap();
        let Step::Linked(staged, _) = &steps[named] else { unreachable!() };
        let then = Disk::after(&steps[..named], &[]);
        assert!(!then.dirty.contains(&then.names[staged]), "{steps:#?}");
        for file in &files {
            assert!(then.keeps(&root, &path_of(&root, file)), "{file}: {steps:#?}");
        }
        assert!(Disk::after(&steps, &[]).keeps(&root, &commit), "{steps:#?}");
        let is_sync = |step: &&Step| matches!(step, Step::Synced(_) | Step::FolderSynced(_));
        let syncs = steps[before..].iter().filter(is_sync).count();
        // Three files, their two folders, the commit and its folder; once the folders above too.
        assert!(number == 0 || syncs == 7, "{syncs}: {steps:#?}");
    }
}

#[tokio::test]
async fn a_commit_whose_file_is_lost_is_never_published_however_often_it_is_tried() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap();
    let store = Arc::new(LocalStore::open(&root, Durability::Fsync).unwrap());
    let table = table_of(&store);
    let commit = Path::from("_delta_log/00000000000000000000.json");
    let whole = table.write(&Path::from("dt=2024-01-15/a.parquet"), "rows".into()).await.unwrap();
    // What can't be synced says so.
    let null = File::open("/dev/null").unwrap();
    let lost = Arc::new(Unsynced::of(&root.join("s/log/dt=2024-01-15/b.parquet"), null));
    for _ in 0..2 {
        let refused = table.commit(&commit, "{}".into(), vec![whole.clone(), lost.clone()]).await;
        assert!(matches!(refused, Err(Unpublished::Beside(_))), "{refused:?}");
        let left: Vec<_> = fs::read_dir(root.join("s/log/_delta_log")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    table.commit(&commit, "{}".into(), vec![whole.clone()]).await.unwrap();
    // The number is taken now.
    let taken = table.commit(&commit, "{}".into(), vec![whole]).await;
    assert!(matches!(taken, Err(Unpublished::Entry(Error::AlreadyExists { .. }))), "{taken:?}");
}

#[tokio::test]
async fn a_commit_whose_file_has_no_place_is_not_published() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap();
    let table = table_of(&Arc::new(LocalStore::open(&root, Durability::Fsync).unwrap()));
    let commit = Path::from("_delta_log/00000000000000000000.json");
    let data = Path::from("dt=2024-01-15/a.parquet");
    let taken = path_of(&root, &data);
    fs::create_dir_all(&taken).unwrap();
    let file = table.write_later(&data, "rows".into()).unwrap();
    let refused = table.commit(&commit, "{}".into(), vec![file.clone()]).await;
    assert!(matches!(refused, Err(Unpublished::Beside(_))), "{refused:?}");
    assert!(!path_of(&root, &commit).exists());
    // Nothing of it was lost.
    fs::remove_dir(&taken).unwrap();
    table.commit(&commit, "{}".into(), vec![file]).await.unwrap();
    assert_eq!(fs::read(taken).unwrap(), b"rows");
}

#[test]
fn a_round_ends_with_all_its_parts_also_when_one_fails_or_breaks_down() {
    let rounds: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                for turn in 0..50 {
                    let ended = Arc::new(Mutex::new(0));
                    let part = |number: usize| {
                        let ended = ended.clone();
                        let part = move || {
                            *ended.lock() += 1;
                            match (turn % 5, number) {
                                (1, 2) => Err(Failed::Own(io::Error::other("part 2"))),
                                (2, 0) => panic!("a part breaks down"),
                                _ => Ok(()),
                            }
                        };
                        Box::new(part) as rounds::Part
                    };
                    let parts = (0..turn % 4).map(part).collect();
                    let outcome = rounds::at_once(|| Ok(()), parts);
                    assert_eq!(*ended.lock(), turn % 4);
                    let fails = matches!((turn % 5, turn % 4), (1, 3) | (2, 1..));
                    assert_eq!(outcome.is_err(), fails, "{turn}");
                }
            })
        })
        .collect();
    for round in rounds {
        round.join().unwrap();
    }
}

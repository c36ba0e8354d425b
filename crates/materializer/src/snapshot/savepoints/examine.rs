//! Examining savepoints: their records, and the files that these keep.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{Damage, Error, Examination, FileAdd, FileRole, Result, Storage, Table};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::{Savepoint, decode};

/// Looks at the records of a state's savepoints, and at the files that these keep in the snapshot's table.
pub async fn examine_savepoints(
    storage: &Storage,
    state: &str,
    table: &Table,
    found: &mut Examination,
) -> Result<()> {
    let (store, folder) = (storage.object_store(), Path::from(format!("{state}/savepoints")));
    let mut listed: Vec<ObjectMeta> = store.list(Some(&folder)).try_collect().await?;
    listed.retain(|meta| meta.location.as_ref().ends_with(".json"));
    let mut kept: Vec<(String, Savepoint)> = Vec::new();
    for meta in &listed {
        let bytes = match store.get(&meta.location).await {
            Ok(found) => found.bytes().await?,
            Err(object_store::Error::NotFound { .. }) => continue,
            Err(error) => return Err(Error::from(error).context(&meta.location)),
        };
        found.files += 1;
        found.bytes += meta.size;
        match decode(&meta.location, &bytes) {
            Ok(savepoint) if savepoint.is_released() => {}
            Ok(savepoint) => kept.push((meta.location.to_string(), savepoint)),
            Err(error) => found.damages.push(Damage {
                file: meta.location.to_string(),
                role: FileRole::Savepoint,
                version: None,
                is_needed: false,
                problem: error.to_string(),
            }),
        }
    }
    examine_kept_files(table, &kept, found).await
}

/// Looks at the files that records keep, unless that was done, and notes the records whose files are not sound.
async fn examine_kept_files(
    table: &Table,
    kept: &[(String, Savepoint)],
    found: &mut Examination,
) -> Result<()> {
    let place = |path: &str| format!("{}/{}", table.label(), Path::from(path));
    let mut files: BTreeMap<String, (Arc<FileAdd>, i64)> = BTreeMap::new();
    for (_, savepoint) in kept {
        for file in &savepoint.files {
            files.insert(file.path.clone(), (Arc::new(file.add(0)), savepoint.log_commit));
        }
    }
    let state = table.state();
    files.retain(|path, _| {
        let is_known = |damage: &Damage| damage.file == place(path);
        state.file(path).is_none() && !found.damages.iter().any(is_known)
    });
    let mut own = Examination::default();
    table.examine_files(files.into_values().collect(), None, &mut own).await?;
    let problem_with = |path: &str| {
        let all = found.damages.iter().chain(&own.damages);
        all.filter(|damage| damage.role == FileRole::Data)
            .find(|damage| damage.file == place(path))
            .map(|damage| format!("it keeps {}: {}", damage.file, damage.problem))
    };
    let mut noted = Vec::new();
    for (record, savepoint) in kept {
        let problem = savepoint.files.iter().find_map(|file| problem_with(&file.path));
        noted.extend(problem.map(|problem| Damage {
            file: record.clone(),
            role: FileRole::Savepoint,
            version: Some(savepoint.log_commit),
            is_needed: false,
            problem,
        }));
    }
    found.damages.extend(noted);
    found.files += own.files;
    found.bytes += own.bytes;
    found.unchecked_files += own.unchecked_files;
    Ok(())
}

//! Temporary files of cache folders: a cache entry is written under a temporary name and renamed
//! once complete, so that readers never see a partial one. A killed process leaves its temporary
//! file behind; the next write into the folder removes it.

use std::fs::{self, DirEntry};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::{Builder, NamedTempFile};

/// The prefix of our temporary files.
const PREFIX: &str = ".fullshard-";

/// The prefix that earlier versions used, which is that of `tempfile`.
const OLD_PREFIX: &str = ".tmp";

/// The number of random characters after a prefix.
const RANDOM: usize = 6;

/// The age of an abandoned file. A file that is still written to is younger.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A new temporary file in a cache folder, which is created if missing and cleared of the temporary
/// files of killed processes.
pub fn temporary_file(folder: &Path) -> io::Result<NamedTempFile> {
    fs::create_dir_all(folder)?;
    remove_abandoned(folder);
    Builder::new().prefix(PREFIX).rand_bytes(RANDOM).tempfile_in(folder)
}

/// Removes abandoned files. One that cannot be removed, or that another process removes first, does
/// no harm.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary(&entry) && is_abandoned(&entry) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_temporary(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.to_string_lossy();
    let random = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(OLD_PREFIX));
    random.is_some_and(|random| {
        random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Whether it is a file whose last write was long ago.
fn is_abandoned(entry: &DirEntry) -> bool {
    let Ok(metadata) = entry.metadata() else { return false };
    let age = metadata.modified().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
    metadata.is_file() && age.is_some_and(|age| age > ABANDONED)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs::File;

    fn file(folder: &Path, name: &str, age: Duration) {
        let file = File::create(folder.join(name)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn a_new_file_removes_abandoned_ones() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        drop(temporary_file(&cache).unwrap());
        let (hour, day) = (Duration::from_secs(3600), ABANDONED + Duration::from_secs(60));
        for name in [".fullshard-aB3dEf", ".tmpaB3dEf"] {
            file(&cache, name, day);
        }
        let kept = [".fullshard-young1", ".tmpyoung1"];
        kept.iter().for_each(|name| file(&cache, name, hour));
        let others = [".tmpfile-of-others", ".fullshard-x", "entry.tokens", ".hidden"];
        others.iter().for_each(|name| file(&cache, name, day));
        fs::create_dir(cache.join(".tmpfolder")).unwrap();

        drop(temporary_file(&cache).unwrap());
        let mut left: Vec<_> = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap()).collect();
        left.sort_by_key(DirEntry::file_name);
        let left: Vec<_> =
            left.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
        let mut expected = [&kept[..], &others[..], &[".tmpfolder"]].concat();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }
}

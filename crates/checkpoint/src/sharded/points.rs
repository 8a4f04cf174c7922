//! The points of a save, for tests and drills that end a process at one of them.

use std::sync::Arc;

/// A moment of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavePoint {
    /// A file of shards is about to be written.
    Writing,
    /// Half of a file of shards is written.
    Midway,
    /// All files are written and synced, under another name.
    Synced,
    /// The folder has its name, but no marker.
    Renamed,
    /// The checkpoint is complete.
    Committed,
}

impl SavePoint {
    /// Its name, in drills.
    pub fn name(self) -> &'static str {
        match self {
            SavePoint::Writing => "writing",
            SavePoint::Midway => "midway",
            SavePoint::Synced => "synced",
            SavePoint::Renamed => "renamed",
            SavePoint::Committed => "committed",
        }
    }
}

/// Called at every point of a save, from the threads that write.
pub type OnSave = Arc<dyn Fn(SavePoint) + Send + Sync>;

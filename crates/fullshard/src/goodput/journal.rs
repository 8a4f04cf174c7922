//! The journal of a run: a file that is only appended to, by process 0 of each generation and by
//! whoever restarts them.
//!
//! A process may be killed while it writes, so a reader ignores what is not a record, and a writer
//! begins a line of its own. A writer reads the clock once and counts from there: within one, time
//! never jumps.

use super::event::{Event, Record};
use crate::error::{Error, Result};
use fullshard_checkpoint::{Error as WriteError, check_place};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

/// The name of the journal in an output folder.
pub const JOURNAL: &str = "goodput.jsonl";

/// Writes the journal of an output folder. A journal that cannot be written is a warning, once.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    opened: Instant,
    /// When it was opened, in seconds since 1970.
    opened_at: f64,
    warned: AtomicBool,
}

impl Journal {
    /// The journal of an output folder. Nothing is written before the first record, nor while
    /// there is no such folder.
    pub fn open(folder: impl AsRef<Path>) -> Journal {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Journal {
            path: folder.as_ref().join(JOURNAL),
            opened: Instant::now(),
            opened_at: since_1970.map_or(0.0, |time| time.as_secs_f64()),
            warned: AtomicBool::new(false),
        }
    }

    /// Records something that happened, or ended, now.
    pub fn record(&self, event: Event) {
        self.record_at(Instant::now(), event);
    }

    /// Records something that happened, or ended, at a time.
    pub fn record_at(&self, at: Instant, event: Event) {
        let after = at.saturating_duration_since(self.opened).as_secs_f64();
        let before = self.opened.saturating_duration_since(at).as_secs_f64();
        let time = self.opened_at + after - before;
        // Microseconds are enough.
        let time = (time * 1e6).round() / 1e6;
        if !self.path.parent().is_some_and(Path::is_dir) {
            return;
        }
        let written = check_place(&self.path).and_then(|()| {
            let write_error = |source| WriteError::Write { path: self.path.clone(), source };
            self.append(&Record { time, event }).map_err(write_error)
        });
        // A run is worth more than its journal.
        if let Err(error) = written
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{error}: the goodput of the run may not be known");
        }
    }

    fn append(&self, record: &Record) -> io::Result<()> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(&self.path)?;
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if !ends_a_line(&file)? {
            line.insert(0, b'\n');
        }
        // In one piece, since there are several writers.
        (&file).write_all(&line)
    }
}

/// Whether the next byte of a file starts a line.
fn ends_a_line(file: &File) -> io::Result<bool> {
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}

/// The records in the journal of an output folder, in the order of writing. What is not a record
/// is left out.
pub fn read(folder: impl AsRef<Path>) -> Result<Vec<Record>> {
    let path = folder.as_ref().join(JOURNAL);
    let file = File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Usage(format!(
            "there is no {JOURNAL} in {}: name the output folder of a run that has trained",
            folder.as_ref().display()
        )),
        _ => Error::file(&path, error),
    })?;
    let mut records = Vec::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(|error| Error::file(&path, error))?;
        records.extend(serde_json::from_slice::<Record>(&line).ok());
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::Ended;
    use std::fs;

    const SAVED: Event = Event::Saved { step: 3, seconds: 0.5 };

    fn events(folder: &Path) -> Vec<Event> {
        read(folder).unwrap().into_iter().map(|record| record.event).collect()
    }

    #[test]
    fn reads_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path());
        let before = Instant::now() - std::time::Duration::from_secs(40);
        let all = [
            Event::Start {
                run: "a".into(),
                generation: None,
                processes: 2,
                devices: 8,
                starts_over: false,
            },
            Event::Steps { from: 1, to: 5, seconds: 0.25 },
            Event::Failure {
                process: Some(1),
                host: Some("b".into()),
                reason: "killed by signal 9".into(),
                silent_s: None,
            },
            Event::End { how: Ended::Failed, reason: Some("disk full".into()) },
        ];
        for event in &all {
            journal.record_at(before, event.clone());
        }
        journal.record(SAVED);
        let records = read(folder.path()).unwrap();
        let found: Vec<Event> = records.iter().map(|record| record.event.clone()).collect();
        assert_eq!(found, [&all[..], &[SAVED]].concat());
        let apart = records[4].time - records[0].time;
        assert!((40.0..41.0).contains(&apart), "{apart}");
    }

    /// Whatever of a line a killed process has written, the next record is read.
    #[test]
    fn torn_lines_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(JOURNAL);
        Journal::open(folder.path()).record(SAVED);
        let line = fs::read(&path).unwrap();
        for written in 1..line.len() {
            fs::write(&path, [&line[..], &line[..written]].concat()).unwrap();
            let journal = Journal::open(folder.path());
            journal.record(Event::Evaluation { seconds: 1.0 });
            let found = events(folder.path());
            // All but the end of the line is a record.
            let whole = 1 + usize::from(written == line.len() - 1);
            assert_eq!(found.len(), whole + 1, "{written} bytes: {found:?}");
            assert_eq!(found[whole], Event::Evaluation { seconds: 1.0 });
        }
    }

    #[test]
    fn other_versions_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        let lines = [
            r#"{"time": 1.0, "event": "start", "run": "a", "color": "blue"}"#,
            r#"{"time": 2.0, "event": "teleport", "to": "the moon"}"#,
            r#"{"time": 3.0, "event": "resumed", "step": 4}"#,
            "\u{0}\u{0}",
        ];
        fs::write(folder.path().join(JOURNAL), lines.join("\n")).unwrap();
        let found = events(folder.path());
        assert!(matches!(&found[0], Event::Start { run, devices: 0, .. } if run == "a"));
        assert_eq!(found[1], Event::Unknown);
        assert!(matches!(found[2], Event::Resumed { step: 4, .. }), "{found:?}");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_journal_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        Journal::open(&missing).record(SAVED);
        assert!(!missing.exists());
        let error = read(&missing).unwrap_err().to_string();
        assert!(error.contains("there is no goodput.jsonl in"), "{error}");
        fs::create_dir(folder.path().join(JOURNAL)).unwrap();
        let journal = Journal::open(folder.path());
        journal.record(SAVED);
        assert!(journal.warned.load(Ordering::Relaxed));
    }
}

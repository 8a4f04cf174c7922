//! `fullshard checkpoint list`.

use crate::output::{local_time, print_json, show};
use fullshard::Result;
use fullshard::format;
use fullshard_checkpoint::{CheckpointState, CheckpointSummary, summarize};
use std::path::Path;

pub fn run(path: &Path, json: bool) -> Result<()> {
    let found = summarize(path)?;
    if json {
        return print_json(&found);
    }
    show!("{:<16} {:<19} {:>10}  state", "checkpoint", "saved", "size");
    for checkpoint in &found {
        let name = checkpoint.path.file_name().unwrap_or_default().to_string_lossy();
        let saved = checkpoint.saved_at.map_or("unknown".to_owned(), local_time);
        let size = format::bytes(checkpoint.bytes);
        show!("{name:<16} {saved:<19} {size:>10}  {}", state(checkpoint));
    }
    if !found.iter().any(|checkpoint| checkpoint.resumes) {
        show!("--resume_from_checkpoint can use none of them");
    }
    Ok(())
}

fn state(checkpoint: &CheckpointSummary) -> String {
    let reason = checkpoint.reason.as_deref().unwrap_or_default();
    let mut parts = vec![match checkpoint.state {
        CheckpointState::Complete => "complete".to_owned(),
        CheckpointState::NotCommitted => "not committed".to_owned(),
        CheckpointState::Damaged => format!("damaged: {reason}"),
    }];
    if checkpoint.best {
        parts.push("best".to_owned());
    }
    if checkpoint.resumes {
        parts.push("resumed by --resume_from_checkpoint".to_owned());
    }
    parts.join(", ")
}

//! `fullshard checkpoint verify`.

use super::byte_bar;
use crate::output::{print_json, show};
use fullshard::Result;
use fullshard::format;
use fullshard_checkpoint::{bytes_to_verify, to_verify, verify_checkpoint};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

pub fn run(path: &Path, json: bool) -> Result<ExitCode> {
    let mut verified = Vec::new();
    for checkpoint in to_verify(path)? {
        let bar = byte_bar("verifying", &checkpoint, bytes_to_verify(&checkpoint));
        let found = verify_checkpoint(&checkpoint, &mut |bytes| bar.inc(bytes));
        bar.finish_and_clear();
        if !json {
            print(&found);
        }
        verified.push(found);
    }
    let complete = verified.iter().all(|found| found.problems.is_empty());
    if json {
        print_json(&json!({ "complete": complete, "checkpoints": verified }))?;
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(found: &fullshard_checkpoint::Verified) {
    let path = found.path.display();
    if found.problems.is_empty() {
        show!("{path}: complete, {} verified", format::bytes(found.bytes));
        return;
    }
    show!("{path}: {}", format::count(found.problems.len(), "problem"));
    for problem in &found.problems {
        show!("  {problem}");
    }
}

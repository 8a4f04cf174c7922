//! `fullshard checkpoint reshard` and `consolidate`.

use super::byte_bar;
use crate::output::{print_json, show};
use fullshard::Result;
use fullshard::format;
use fullshard_checkpoint::{self as checkpoint, Consolidated, Opened, WeightDtype, check_output};
use serde::Serialize;
use serde_json::json;
use std::path::Path;

#[derive(Serialize)]
struct Report<'a> {
    path: &'a Path,
    #[serde(flatten)]
    written: &'a Consolidated,
}

pub fn reshard(path: &Path, output: &Path, shards: usize, json: bool) -> Result<()> {
    check_output(output)?;
    let source = checkpoint::open_checkpoint(path)?;
    let manifest = source.manifest();
    let bar = byte_bar("writing", output, manifest.tensor_bytes());
    let written = checkpoint::reshard(&source, output, shards, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let (path, step, bytes) = (written?, manifest.progress.step, manifest.tensor_bytes());
    if json {
        return print_json(&json!({
            "path": path,
            "step": step,
            "num_shards": shards,
            "tensors": manifest.tensors.len(),
            "bytes": bytes,
        }));
    }
    show!(
        "{}: step {step}, {} ({}) in {}",
        path.display(),
        format::count(manifest.tensors.len(), "tensor"),
        format::bytes(bytes),
        format::count(shards, "shard")
    );
    Ok(())
}

pub fn consolidate(
    path: &Path,
    output: &Path,
    max_shard_bytes: u64,
    dtype: Option<WeightDtype>,
    json: bool,
) -> Result<()> {
    check_output(output)?;
    let source = Opened::open(path)?;
    let bar = byte_bar("writing", output, source.describe().bytes);
    let progress = &mut |bytes| bar.inc(bytes);
    let written = checkpoint::consolidate(source, output, max_shard_bytes, dtype, progress);
    bar.finish_and_clear();
    let written = written?;
    if json {
        return print_json(&Report { path: output, written: &written });
    }
    let dtypes: Vec<_> = written.dtypes.iter().map(|(dtype, n)| format!("{n} {dtype}")).collect();
    show!(
        "{}: {} ({}), {} in {}",
        output.display(),
        format::count(written.tensors, "tensor"),
        dtypes.join(", "),
        format::bytes(written.bytes),
        format::count(written.files.len(), "file")
    );
    if !written.others.is_empty() {
        show!("with {}", written.others.join(", "));
    }
    if !written.has_config() {
        show!("weights only: add the model's config.json to open them with transformers");
    }
    Ok(())
}

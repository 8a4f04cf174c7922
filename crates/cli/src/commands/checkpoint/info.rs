//! `fullshard checkpoint info`.

use crate::output::{local_time, print_json, show};
use fullshard::Result;
use fullshard::format;
use fullshard_checkpoint::{CheckpointDescription, Description, Opened, TensorDescription};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// The settings of a run that are shown, by their place in its config.
const SETTINGS: [&str; 18] = [
    "/model/pretrained",
    "/model/model_type",
    "/model/config",
    "/model/config/model_type",
    "/data/dataset",
    "/data/train_file",
    "/data/block_size",
    "/fsdp/strategy",
    "/precision/compute",
    "/remat/policy",
    "/optimizer/learning_rate",
    "/optimizer/weight_decay",
    "/schedule/lr_scheduler",
    "/schedule/max_steps",
    "/schedule/epochs",
    "/schedule/per_device_batch",
    "/schedule/gradient_accumulation_steps",
    "/schedule/seed",
];

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    description: Description,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_list: Option<Vec<TensorDescription>>,
}

pub fn run(path: &Path, tensors: bool, json: bool) -> Result<()> {
    let opened = Opened::open(path)?;
    let description = opened.describe();
    let tensor_list = tensors.then(|| opened.describe_tensors());
    if json {
        return print_json(&Report { description, tensor_list });
    }
    print(&description);
    if let Some(checkpoint) = &description.checkpoint {
        print_checkpoint(checkpoint);
    }
    for tensor in tensor_list.iter().flatten() {
        let shards =
            tensor.shards.map_or(String::new(), |n| format!("  {}", format::count(n, "shard")));
        show!("  {}  {:?}  {}{shards}", tensor.name, tensor.dims, tensor.dtype);
    }
    Ok(())
}

fn row(what: &str, value: impl std::fmt::Display) {
    show!("{what:<20} {value}");
}

fn print(found: &Description) {
    let dtypes: Vec<_> = found.dtypes.iter().map(|(dtype, n)| format!("{n} {dtype}")).collect();
    row("path", found.path.display());
    row("format", found.format);
    row("parameters", format::grouped(found.parameters));
    row("tensors", format!("{} ({})", found.tensors, dtypes.join(", ")));
    row("weights", format::bytes(found.bytes));
}

fn print_checkpoint(found: &CheckpointDescription) {
    let data = &found.data;
    row("step", found.step);
    row("epoch", format!("{:.2}", found.epoch));
    row(
        "data",
        format!(
            "sequence {} of {} in epoch {}, {} per step",
            data.example,
            data.examples,
            data.epoch + 1,
            data.batch
        ),
    );
    row("saved", format!("{} by fullshard {}", local_time(found.saved_at), found.fullshard));
    row("mesh", &found.mesh);
    match &found.optimizer {
        Some(name) => row(
            "optimizer",
            format!(
                "{name}, {} in {}",
                format::bytes(found.optimizer_bytes),
                format::count(found.optimizer_tensors, "tensor")
            ),
        ),
        None => row("optimizer", "not saved"),
    }
    let full = format::count(found.full_tensors, "full tensor");
    match found.sharded_tensors {
        0 => row("layout", full),
        sharded => {
            row("layout", format!("{full}, {sharded} in up to {} shards", found.most_shards));
        }
    }
    row(
        "total size",
        format!(
            "{} in {}",
            format::bytes(found.file_bytes),
            format::count(found.files.len(), "file")
        ),
    );
    for (name, bytes) in &found.files {
        show!("  {name:<40} {:>10}", format::bytes(*bytes));
    }
    show!("settings");
    for place in SETTINGS {
        if let Some(value) = found.config.pointer(place).filter(|value| is_set(value)) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            show!("  {:<40} {text}", place[1..].replace('/', "."));
        }
    }
}

/// Whether a setting has a value that fits into a line.
fn is_set(value: &Value) -> bool {
    let is_empty = value.as_array().is_some_and(Vec::is_empty);
    !(value.is_null() || value.is_object() || is_empty)
}

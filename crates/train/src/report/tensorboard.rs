//! TensorBoard event files: one record per event, a protocol buffer between two checksums.
//!
//! The messages have the fields of TensorFlow's `event.proto` and `summary.proto` that are used
//! here. Records are written immediately, so that TensorBoard can follow a run; an event file is a
//! log and, unlike other files here, is not renamed into place when complete.

use super::values::Values;
use chrono::{Local, Utc};
use fullshard_checkpoint::{Error, Result};
use prost::Message;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// Tells TensorBoard that a run starts again at the step of the event: later ones of earlier files
/// are not shown.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The status of a run that starts.
const STARTED: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<SummaryValue>,
}

#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    // Optional, since zero must be written as well.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<TensorProto>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<SummaryMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct SummaryMetadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<TensorShape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_values: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    dims: Vec<TensorDim>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorDim {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// TensorFlow's dtype of strings.
const DT_STRING: i32 = 7;

/// Writes an event file.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates an event file where Hugging Face's Trainer does:
    /// `{output_dir}/runs/{time}_{host}/events.out.tfevents.{seconds}.{host}.{process}.0`.
    pub fn create(output_dir: impl AsRef<Path>) -> Result<EventWriter> {
        let now = Local::now().format("%b%d_%H-%M-%S");
        EventWriter::in_folder(&output_dir.as_ref().join("runs").join(format!("{now}_{}", host())))
    }

    /// Creates an event file beside those of a run that is resumed after a step, of which later
    /// steps are no longer shown.
    pub fn resume(folder: &Path, step: u64) -> Result<EventWriter> {
        let mut writer = EventWriter::in_folder(folder)?;
        writer.write(&Event {
            wall_time: wall_time(),
            step: i64::try_from(step).unwrap_or(i64::MAX).saturating_add(1),
            session_log: Some(SessionLog { status: STARTED }),
            ..Event::default()
        })?;
        Ok(writer)
    }

    fn in_folder(folder: &Path) -> Result<EventWriter> {
        let (seconds, process) = (Utc::now().timestamp(), std::process::id());
        let name = |number| format!("events.out.tfevents.{seconds}.{}.{process}.{number}", host());
        let free = (0..).map(|number| folder.join(name(number))).find(|path| !path.exists());
        EventWriter::create_at(free.unwrap_or_else(|| folder.join(name(0))), seconds as f64)
    }

    /// Creates an event file at a path, at a time in seconds since 1970.
    pub fn create_at(path: impl Into<PathBuf>, wall_time: f64) -> Result<EventWriter> {
        let path = path.into();
        let open = || {
            std::fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new(".")))?;
            File::create(&path)
        };
        let file = open().map_err(|source| Error::Write { path: path.clone(), source })?;
        let mut writer = EventWriter { path, file };
        writer.write(&Event {
            wall_time,
            file_version: Some("brain.Event:2".to_owned()),
            ..Event::default()
        })?;
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a log with Trainer's tags: `eval_loss` is `eval/loss`, and values that are not of an
    /// evaluation are of training, so `loss` is `train/loss`.
    pub fn log(&mut self, step: u64, values: &Values) -> Result<()> {
        self.log_at(wall_time(), step, values)
    }

    /// Adds a log made at a time in seconds since 1970.
    pub fn log_at(&mut self, wall_time: f64, step: u64, values: &Values) -> Result<()> {
        let values = values.iter().map(|(name, &number)| SummaryValue {
            tag: tag(name),
            simple_value: Some(number.as_f64() as f32),
            ..SummaryValue::default()
        });
        self.summary(wall_time, step, values.collect())
    }

    /// Adds a text, such as the run's arguments, which TensorBoard shows as Markdown.
    pub fn text(&mut self, name: &str, text: &str) -> Result<()> {
        self.text_at(wall_time(), name, text)
    }

    /// Adds a text at a time in seconds since 1970.
    pub fn text_at(&mut self, wall_time: f64, name: &str, text: &str) -> Result<()> {
        let tensor = TensorProto {
            dtype: DT_STRING,
            shape: Some(TensorShape { dims: vec![TensorDim { size: 1 }] }),
            string_values: vec![text.as_bytes().to_vec()],
        };
        let plugin = PluginData { plugin_name: "text".to_owned() };
        let value = SummaryValue {
            tag: format!("{name}/text_summary"),
            tensor: Some(tensor),
            metadata: Some(SummaryMetadata { plugin_data: Some(plugin) }),
            ..SummaryValue::default()
        };
        self.summary(wall_time, 0, vec![value])
    }

    fn summary(&mut self, wall_time: f64, step: u64, values: Vec<SummaryValue>) -> Result<()> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        let summary = Some(Summary { values });
        self.write(&Event { wall_time, step, summary, ..Event::default() })
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        let record = framed(&event.encode_to_vec());
        let error = |source: io::Error| Error::Write { path: self.path.clone(), source };
        self.file.write_all(&record).map_err(error)
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn wall_time() -> f64 {
    Utc::now().timestamp_micros() as f64 / 1e6
}

fn tag(name: &str) -> String {
    for split in ["eval", "test"] {
        if let Some(rest) = name.strip_prefix(split).and_then(|rest| rest.strip_prefix('_')) {
            return format!("{split}/{rest}");
        }
    }
    format!("train/{name}")
}

/// A record: its length and the length's checksum, its bytes and their checksum.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked_checksum(bytes).to_le_bytes();
    [&length[..], &checksum(&length), bytes, &checksum(bytes)].concat()
}

/// A CRC-32C, masked since records may contain checksums.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

//! What can be seen of a run: its program, and everything that a short training leaves behind.

use fullshard::config::{Given, RunConfig};
use fullshard_data::demo::Demo;
use fullshard_train::report::Values;
use fullshard_train::{Callback, Error, Evaluated, Metrics};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// A flag with its value.
pub type Flag = (&'static str, &'static str);

/// Flags of a run of three steps of a tiny model.
const BASE: &[Flag] = &[
    (
        "config_name",
        r#"{"model_type": "gpt2", "vocab_size": 96, "n_positions": 16, "n_embd": 16,
            "n_layer": 2, "n_head": 2}"#,
    ),
    ("train_file", "train.txt"),
    ("validation_file", "validation.txt"),
    ("tokenizer_name", "tokenizer.json"),
    ("block_size", "16"),
    ("max_steps", "3"),
    ("per_device_train_batch_size", "2"),
    ("logging_steps", "1"),
    ("cache_dir", "cache"),
    ("save_strategy", "no"),
];

/// Flags whose values are files of the folder.
const FILES: [&str; 7] = [
    "train_file",
    "validation_file",
    "tokenizer_name",
    "cache_dir",
    "output_dir",
    "plugin",
    "profile",
];

/// A folder with text, a tokenizer and caches.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        Demo::write(folder.path(), 600, 5).unwrap();
        Folder(folder)
    }

    /// The base config with some flags, and perhaps one more, or a key such as `fsdp.wrap`.
    pub fn config(&self, flags: &[Flag], more: Option<(&str, &str)>) -> Result<RunConfig, String> {
        let mut all: BTreeMap<&str, &str> = BASE.iter().copied().collect();
        all.extend(flags.iter().copied());
        let key = more.filter(|(name, _)| name.contains('.'));
        all.extend(more.filter(|(name, _)| !name.contains('.')));
        let mut given = Given::default();
        for (name, value) in all.into_iter().filter(|(_, value)| *value != "-") {
            let file = self.0.path().join(value);
            let is_file = FILES.contains(&name) && value != "gpt2";
            let value = if is_file { file.display().to_string() } else { value.to_owned() };
            given.add(name, vec![value]).map_err(|error| error.to_string())?;
        }
        let mut base = RunConfig::default();
        base.output.dir = self.0.path().join("output");
        let config = given.resolve(base).map_err(|error| error.to_string())?;
        let Some((key, value)) = key else { return Ok(config) };
        let mut object = serde_json::to_value(&config).unwrap();
        let value: Value = serde_json::from_str(value).unwrap();
        let (section, key) = key.split_once('.').unwrap();
        object[section][key] = value;
        serde_json::from_value(object).map_err(|error| error.to_string())
    }
}

/// What was seen.
#[derive(Debug, PartialEq, Default)]
pub struct Observed {
    events: String,
    files: BTreeMap<PathBuf, String>,
}

impl Observed {
    /// The programs of a config, with how they are compiled.
    pub fn program(config: &RunConfig) -> String {
        let spec = config.planned_spec().unwrap();
        for warning in config.warnings(&spec) {
            tracing::warn!("{warning}");
        }
        let options = config.compile_options(spec.model.attention_form()).unwrap();
        let evaluation = config.evaluation.per_device_batch * config.devices();
        let programs = [spec.launch_program(), spec.eval_program(evaluation)];
        format!("{}{options:?}", programs.map(|program| program.unwrap().to_text()).concat())
    }

    /// Trains, into an empty output folder.
    pub fn run(config: &RunConfig, folder: &Folder) -> Result<Observed, String> {
        let _ = fs::remove_dir_all(folder.0.path().join("output"));
        let mut observed = Observed::default();
        let outcome = fullshard::train(config, &mut observed).map_err(|error| error.to_string())?;
        let trained = outcome.trained.map(|trained| trained.stopped);
        let loss = outcome.evaluated.map(|evaluated| evaluated.loss);
        let cached = config.device.compile_cache().unwrap().is_some();
        let _ = writeln!(observed.events, "{trained:?}, {loss:?}, cached: {cached}");
        observed.look(folder.0.path(), folder.0.path());
        Ok(observed)
    }

    /// Notes the files below a folder: results by their contents without times, caches by when
    /// they were written.
    fn look(&mut self, root: &Path, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if path.is_dir() {
                // TensorBoard's folders carry the time in their names.
                let name = if name.ends_with("runs") { name } else { name.join("") };
                self.files.insert(name.clone(), "a folder".to_owned());
                if !name.ends_with("runs") {
                    self.look(root, &path);
                }
                continue;
            }
            let seen = match path.extension().and_then(|extension| extension.to_str()) {
                // These have times and names of runs.
                Some("json") if name.ends_with("manifest.json") => String::new(),
                Some("json") if name.ends_with("losses.json") => String::new(),
                Some("json") => results(&path),
                Some("toml" | "svg" | "jsonl") => String::new(),
                _ if name.starts_with("cache") => {
                    fs::metadata(&path).unwrap().mtime_nsec().to_string()
                }
                _ => fs::metadata(&path).unwrap().len().to_string(),
            };
            self.files.insert(name, seen);
        }
    }
}

/// A JSON file without what differs from run to run.
fn results(path: &Path) -> String {
    let Ok(mut value) = serde_json::from_slice::<Value>(&fs::read(path).unwrap()) else {
        return String::new();
    };
    clean(&mut value);
    value.to_string()
}

fn clean(value: &mut Value) {
    const TIMED: [&str; 9] = [
        "second",
        "runtime",
        "step_time",
        "startup_time",
        "input_wait",
        "memory",
        "compile",
        "mfu",
        "goodput",
    ];
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !TIMED.iter().any(|timed| key.contains(timed)));
            object.values_mut().for_each(clean);
        }
        Value::Array(values) => values.iter_mut().for_each(clean),
        _ => {}
    }
}

impl Callback for Observed {
    fn on_step(&mut self, step: u64, metrics: Metrics) -> Result<(), Error> {
        let _ = writeln!(self.events, "step {step}: {}", metrics.loss);
        Ok(())
    }

    fn on_log(&mut self, step: u64, values: &Values) -> Result<(), Error> {
        let rate = values.get("learning_rate").map(|rate| rate.as_f64());
        let _ = writeln!(self.events, "log {step}: {rate:?}");
        Ok(())
    }

    fn on_evaluate(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Error> {
        let _ = writeln!(self.events, "evaluation {step}: {}", evaluated.loss);
        Ok(())
    }
}

/// What a function returns, and the warnings it logs.
pub fn warned<T>(function: impl FnOnce() -> T) -> (T, String) {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
    let result = tracing::subscriber::with_default(subscriber, function);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    (result, text)
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

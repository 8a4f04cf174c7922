//! A run that is killed at any point of a save, and resumed, ends with the same weights.
#![allow(clippy::unwrap_used)]

use fullshard::config::{ConfigSource, ResumeFrom, RunConfig};
use fullshard::run::{Control, Run};
use fullshard_checkpoint::sharded::SavePoint;
use fullshard_data::demo::Demo;
use serde_json::{Map, json};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FOLDER: &str = "FULLSHARD_TEST_FOLDER";
const POINT: &str = "FULLSHARD_TEST_POINT";

const POINTS: [SavePoint; 5] = [
    SavePoint::Writing,
    SavePoint::Midway,
    SavePoint::Synced,
    SavePoint::Renamed,
    SavePoint::Committed,
];

fn config(folder: &Path) -> RunConfig {
    let model = json!({
        "model_type": "gpt2", "vocab_size": 96, "n_positions": 16, "n_embd": 16, "n_layer": 2,
        "n_head": 2,
    });
    let model: Map<_, _> = model.as_object().unwrap().clone();
    let mut config = RunConfig::default();
    config.model.config = Some(ConfigSource::inline(model));
    config.data.train_file = vec![folder.join("train.txt")];
    config.data.tokenizer = Some(folder.join("tokenizer.json").display().to_string());
    config.data.block_size = Some(16);
    config.data.cache_dir = Some(folder.join("cache"));
    config.mesh.devices = Some(2);
    config.schedule.max_steps = 7;
    config.schedule.per_device_batch = 2;
    config.logging.report_to = vec!["none".to_owned()];
    config.output.dir = folder.join("out");
    config.checkpoint.steps = 2.0;
    config.checkpoint.resume = Some(ResumeFrom::Auto);
    config
}

/// Runs to the end, or kills this process at a point of the second save.
#[test]
#[ignore = "run by the test below"]
fn child_run() {
    let folder = std::env::var(FOLDER).unwrap();
    let point = std::env::var(POINT).unwrap_or_default();
    let point = POINTS.into_iter().find(|at| at.name() == point);
    let saves = AtomicUsize::new(0);
    let on_save = move |at: SavePoint| {
        let save = match at {
            SavePoint::Committed => saves.fetch_add(1, Ordering::SeqCst),
            _ => saves.load(Ordering::SeqCst),
        };
        if save == 1 && Some(at) == point {
            let id = std::process::id().to_string();
            Command::new("kill").args(["-9", &id]).status().unwrap();
        }
    };
    let run = Run::prepare(&config(Path::new(&folder)), &mut ()).unwrap();
    let corpora = run.corpora(&mut ()).unwrap();
    let client = run.client().unwrap();
    let compiler = run.compiler(&client).unwrap();
    let mut started = run.start(&compiler).unwrap();
    let set = run.training_set(&corpora, started.checkpoint).unwrap().unwrap();
    let control = Control { on_save: Arc::new(on_save), ..Control::default() };
    run.train(&mut started, set, None, &control, &mut ()).unwrap();
}

fn child(folder: &Path, point: &str) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_run", "--exact", "--ignored"]).env(FOLDER, folder).env(POINT, point);
    command.env("FULLSHARD_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/kill_points"));
    command.output().unwrap().status
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Demo::write(folder.path(), 600, 5).unwrap();
    folder
}

#[test]
fn runs_killed_at_any_point_of_a_save_end_the_same() {
    let model = |folder: &Path| fs::read(folder.join("out/model.safetensors")).unwrap();
    let whole = folder();
    assert!(child(whole.path(), "").success());
    for name in POINTS.map(SavePoint::name) {
        let folder = folder();
        let killed = child(folder.path(), name);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&killed), Some(9), "{name}");
        let steps: Vec<u64> = fullshard_checkpoint::list(&folder.path().join("out"))
            .unwrap()
            .iter()
            .filter(|listed| listed.manifest.is_ok())
            .map(|listed| listed.step)
            .collect();
        assert_eq!(steps, if name == "committed" { vec![4, 2] } else { vec![2] }, "{name}");
        assert!(child(folder.path(), "").success(), "{name}");
        assert!(model(folder.path()) == model(whole.path()), "{name}");
    }
}

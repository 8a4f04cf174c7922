//! A full disk, and losses that are not finite: what was saved stays, what was trained is written.

use super::{drill, fail, finish, folder, intact, weights};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system in memory, which only root can mount.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: PathBuf, bytes: u64) -> Option<Tmpfs> {
        fs::create_dir(&path).unwrap();
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path);
        let output = mount.output();
        match output {
            Ok(output) if output.status.success() => Some(Tmpfs(path)),
            failed => {
                println!("skipped, since a tmpfs cannot be mounted: {failed:?}");
                None
            }
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn bytes_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    // Files fill pages.
    entries.map(|entry| entry.len().next_multiple_of(4096)).sum()
}

/// The disk has room for one checkpoint: later ones fail, and so does the model at the end.
#[test]
fn a_full_disk_costs_neither_checkpoints_nor_the_model() {
    let folder = folder();
    let flags = ["--max_steps", "5", "--save_steps", "2", "--report_to", "none"];
    finish(&folder, &drill(&[&flags[..], &["--output_dir", "free"]].concat()));
    let room = bytes_of(&folder.path("free/checkpoint-4")) + (32 << 10);
    let Some(disk) = Tmpfs::mount(folder.path("disk"), room) else { return };
    let more = ["--output_dir", "disk/out", "--rescue_dir", "rescue"];
    let printed = fail(
        &folder,
        &drill(&[&flags[..], &more].concat()),
        &[
            "warning: no checkpoint was saved: cannot write disk/out/.unfinished-checkpoint-4",
            "The disk is full",
            "Training goes on",
            "step 5/5",
            "The model and the results are in rescue/fullshard-out-step-5-",
        ],
    );
    assert_eq!(intact(&disk.0.join("out")), [2], "{printed}");
    let rescued = fs::read_dir(folder.path("rescue")).unwrap().next().unwrap().unwrap().path();
    for name in ["config.json", "tokenizer.json", "trainer_state.json", "all_results.json"] {
        assert!(rescued.join(name).is_file(), "{name}");
    }
    let model = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert!(model(&rescued) == model(&folder.path("free")));
    let names: Vec<_> = fs::read_dir(disk.0.join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(!names.iter().any(|name| name.starts_with(".unfinished")), "{names:?}");
    assert!(!disk.0.join("out/model.safetensors").exists(), "{names:?}");
}

/// The weights before a step that is not finite are written, and the results of the run before are
/// gone.
#[test]
fn the_last_finite_weights_are_written() {
    let folder = folder();
    let flags = ["--max_steps", "1", "--save_strategy", "no", "--report_to", "none"];
    finish(&folder, &drill(&[&flags[..], &["--do_eval", "--output_dir", "out"]].concat()));
    let one = weights(folder.path("out"));
    assert!(folder.path("out/eval_results.json").is_file());

    let flags = ["--max_steps", "9", "--learning_rate", "1e30", "--save_steps", "5"];
    let args = drill(&[&flags[..], &["--overwrite_output_dir", "--do_eval"]].concat());
    let printed = fail(
        &folder,
        &args,
        &[
            "error: step 2 has a loss of",
            "lower --learning_rate",
            "The weights before that step are saved in out",
        ],
    );
    let two = weights(folder.path("out"));
    assert!(one != two && two.iter().flat_map(|(_, values)| values).all(|value| value.is_finite()));
    assert_eq!(folder.json("out/trainer_state.json")["global_step"], 1, "{printed}");
    assert!(!folder.path("out/eval_results.json").exists());
    assert_eq!(intact(&folder.path("out")), [1]);
    assert_eq!(weights(folder.path("out/checkpoint-1")), two);
}

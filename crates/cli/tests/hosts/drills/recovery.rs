//! What it costs to lose a host: from a checkpoint on disk, and from copies in memory. A GPT-2 of
//! 100 million parameters with AdamW, 1.2 GB of state, in three processes:
//!
//!     cargo build --release
//!     FULLSHARD_TEST_BINARY=$PWD/target/release/fullshard cargo test -p fullshard-cli --test hosts \
//!         -- --ignored --nocapture long_recovery
//!
//! A checkpoint is read from a disk whose cache is empty, if this is root, as after the loss of a
//! host. It is of every 20th step, the interval that costs least at one failure per hour: a save
//! pauses for 0.7 s, so it is the square root of 2 · 0.7 s · 3600 s, 71 s, and a step takes 3 s.

use super::{Drill, Failed, Folder, Kind, PLAIN, drill, lose_host};
use std::fs;

const MODEL: &str = r#"{"model_type": "gpt2", "vocab_size": 20000, "n_positions": 16,
    "n_embd": 768, "n_layer": 12, "n_head": 12, "attn_pdrop": 0, "embd_pdrop": 0,
    "resid_pdrop": 0}"#;

/// One sequence per device, so that steps are short.
macro_rules! run {
    ($($more:literal),*) => {
        &["--config_name", "large.json", "--num_cores", "3", "--per_device_train_batch_size", "1",
          "--learning_rate", "1e-4", "--max_steps", "55", $($more),*]
    };
}

const LARGE: Kind = Kind {
    prepare: |folder: &Folder| folder.write("large.json", MODEL),
    processes: "3",
    first: 26,
    fail: lose_host_and_caches,
    ..PLAIN
};

const FROM_DISK: Kind =
    Kind { name: "from disk, saved every 20 steps", flags: run!("--save_steps", "20"), ..LARGE };

const FROM_MEMORY: Kind = Kind {
    name: "from memory, copied every step",
    flags: run!("--save_steps", "1000", "--replicate_state", "1", "--replicate_dir", "/dev/shm"),
    ..LARGE
};

fn lose_host_and_caches(drill: &mut Drill) -> Failed {
    let failed = lose_host(drill);
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "3") {
        println!("the disk's cache is as it is: {error}");
    }
    failed
}

#[test]
#[ignore = "long: large states"]
fn long_recovery_from_disk_and_from_memory() {
    let disk = drill(&FROM_DISK, 2).outcome;
    drill(&FROM_MEMORY, 2).outcome.assert_is(&disk);
}

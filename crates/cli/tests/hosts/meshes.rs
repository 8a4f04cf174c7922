//! Every kind of mesh over processes: losses are those of one process with the same devices.

use super::common::Folder;
use super::{assert_close, assert_same, ends, flags, mpiexec, process};

/// Trains on a mesh in one process and in several.
fn trains(processes: &'static str, mesh: &'static str, more: &[&'static str]) -> Folder {
    let folder = Folder::new();
    let run = |output, processes| {
        let sizes = mesh.split(',').map(|axis| axis.split_once('=').unwrap().1);
        let devices: usize = sizes.map(|size| size.parse::<usize>().unwrap()).product();
        let devices: &str = devices.to_string().leak();
        let given = ["--mesh", mesh, "--num_cores", devices, "--output_dir", output];
        let steps = ["--max_steps", "5", "--save_strategy", "no"];
        let args = flags(&[&given[..], &steps, more].concat());
        ends(
            match processes {
                "1" => process(&folder, &args),
                _ => mpiexec(&folder, processes, &args),
            },
            0,
        );
    };
    run("one", "1");
    run("many", processes);
    folder
}

macro_rules! meshes {
    ($($(#[$tier:meta])* $name:ident: $processes:literal, $mesh:literal $(, $flag:literal)*;)*) => {
        $(#[test]
        $(#[$tier])*
        fn $name() {
            let folder = trains($processes, $mesh, &[$($flag),*]);
            assert_close(&folder, "many", "one");
        })*
    };
}

meshes! {
    two_of_two_tensor: "2", "fsdp=2,tensor=2";
    two_of_two_context: "2", "context=2,fsdp=2", "--context_method", "ring";
    two_of_two_checked: "2", "data=2,fsdp=2", "--fsdp", "hybrid_shard", "--check_replicas", "1";
    #[ignore = "long: many launches"]
    long_two_of_two_repeated: "2", "fsdp=4", "--check_replicas", "1";
    #[ignore = "long: many launches"]
    long_two_of_two_sharded: "2", "fsdp=4";
    #[ignore = "long: many launches"]
    long_three_of_one_sharded: "3", "fsdp=3";
    #[ignore = "long: many launches"]
    long_three_of_two_sharded: "3", "fsdp=6", "--gradient_accumulation_steps", "2";
    #[ignore = "long: many launches"]
    long_four_of_one_sharded: "4", "fsdp=4", "--remat", "full";
    #[ignore = "long: many launches"]
    long_two_of_two_hybrid: "2", "data=2,fsdp=2", "--fsdp", "hybrid_shard";
    #[ignore = "long: many launches"]
    long_four_of_one_hybrid: "4", "data=2,fsdp=2", "--fsdp", "hybrid_shard", "--optim", "adafactor";
    #[ignore = "long: many launches"]
    long_four_of_one_tensor: "4", "fsdp=2,tensor=2", "--sequence_parallel", "false";
    #[ignore = "long: many launches"]
    long_two_of_one_tensor: "2", "fsdp=1,tensor=2";
    #[ignore = "long: many launches"]
    long_two_of_two_tensor_first: "2", "tensor=2,fsdp=2", "--scan_layers", "false";
    #[ignore = "long: many launches"]
    long_two_of_two_automatic: "2", "fsdp=2,tensor=2", "--automatic_axes", "tensor";
    #[ignore = "long: many launches"]
    long_four_of_one_context: "4", "fsdp=2,context=2", "--context_method", "gather";
    #[ignore = "long: many launches"]
    long_two_of_two_ring: "2", "fsdp=1,context=4", "--context_method", "ring";
    #[ignore = "long: many launches"]
    long_four_of_two_all: "4", "data=2,fsdp=2,tensor=2", "--iterations_per_loop", "5";
    #[ignore = "long: many launches"]
    long_three_of_two_flat: "3", "fsdp=6", "--collective", "flat";
}

/// The sum of two numbers has one order.
#[test]
#[ignore = "long: many launches"]
fn long_two_of_one_in_bfloat16() {
    let folder = trains("2", "fsdp=2", &["--bf16", "true", "--remat", "full"]);
    assert_same(&folder, "many", "one");
}

//! Each launcher trains what one process does with as many devices.

use super::common::Folder;
use super::{
    STEPS, all_text, assert_close, assert_same, by, ends, file, flags, launch, mpiexec, process,
};
use std::process::Command;

/// A folder with a run of one process in `expected`.
fn folder(devices: &'static str) -> Folder {
    let folder = Folder::new();
    let args = [&STEPS[..], &["--num_cores", devices, "--output_dir", "expected"]].concat();
    ends(process(&folder, &flags(&args)), 0);
    folder
}

/// The second job finds its programs in the cache.
#[test]
fn jobs_train_as_one_process_does() {
    let folder = folder("2");
    let printed = ends(mpiexec(&folder, "2", &flags(&STEPS)), 0);
    assert_eq!(printed.matches("training for 6 steps").count(), 1, "{printed}");
    assert_same(&folder, "out", "expected");
    let args = flags(&[&STEPS[..], &["--output_dir", "launched"]].concat());
    let printed = ends(launch(&folder, "2", &args), 0);
    assert_eq!(printed.matches("training for 6 steps").count(), 1, "{printed}");
    assert_same(&folder, "launched", "expected");
}

/// A script that needs root and programs of the system, or nothing, with the reason printed.
pub fn script(name: &str, programs: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name} needs root, to create namespaces");
        return None;
    }
    for program in programs {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.unwrap().status.success() {
            println!("skipped: {name} needs {program}, which is not installed");
            return None;
        }
    }
    Some(file(name))
}

/// Runs a command line on the first of two hosts. `train` is the command that trains, `rendezvous`
/// one that finds the others.
fn on_two_hosts(folder: &Folder, script: &str, line: &str, args: &[&'static str]) -> String {
    let train = process(folder, &flags(&[&STEPS[..], args].concat()));
    let line = line.replace("TRAIN", "\"$0\" \"$@\"").replace("RENDEZVOUS", "\"$0\" rendezvous");
    let mut command = by(script, &["2", "bash", "-c", &line], &train);
    command.env("MPIEXEC", fullshard_testing::mpi().mpiexec);
    command.env("FULLSHARD_SECRET", "one that all processes know");
    let output = command.output().unwrap();
    let printed = all_text(&output);
    assert!(output.status.success(), "{printed}");
    printed
}

/// What hosts have sent one another in the end, in bytes.
const SENT: &str = "ip -json -statistics link show eth0 | grep -o '\"tx\":{\"bytes\":[0-9]*'";

/// By the network that MPICH chooses, by others, and with a given address of process 0.
#[test]
#[ignore = "long: needs root"]
fn long_hosts_train_as_one_process_does() {
    let Some(script) = script("hosts.sh", &["ip", "unshare", "nsenter"]) else { return };
    let folder = folder("2");
    let job = "$MPIEXEC -launcher ssh -launcher-exec $HOSTS/ssh -hosts host1,host2 -n 2 TRAIN";
    for (name, network) in [
        ("default", "UCX_NET_DEVICES=eth0"),
        ("ucx", "UCX_TLS=tcp,self"),
        ("ofi", "MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp"),
        ("given", "FULLSHARD_COORDINATOR=10.9.8.1:61440 UCX_TLS=tcp,self"),
    ] {
        let line = format!("export {network} && {job} && {SENT}");
        let printed = on_two_hosts(&folder, &script, &line, &["--output_dir", name]);
        assert_same(&folder, name, "expected");
        let sent = printed.lines().last().unwrap().rsplit(':').next().unwrap();
        let sent: u64 = sent.parse().unwrap();
        assert!(sent > 500_000, "{name}: only {sent} bytes between the hosts");
    }
}

/// When the network between hosts fails, the processes on both end by themselves.
#[test]
#[ignore = "long: needs root"]
fn long_a_cut_network_ends_the_job() {
    let Some(script) = script("hosts.sh", &["ip", "unshare", "nsenter", "pgrep"]) else { return };
    let folder = Folder::new();
    let line = "UCX_TLS=tcp,self \
                $MPIEXEC -launcher ssh -launcher-exec $HOSTS/ssh -hosts host1,host2 -n 2 \
                TRAIN > train.log 2>&1 & \
                until grep -q '  loss ' train.log; do sleep 0.1; done; \
                $HOSTS/ssh host2 ip link set eth0 down; \
                for ((tries = 0; tries < 300; tries++)); do pgrep -x fullshard || break; sleep 0.1; done; \
                ((tries < 300))";
    on_two_hosts(&folder, &script, line, &["--max_steps", "100000"]);
    let log = std::fs::read_to_string(folder.path("train.log")).unwrap();
    assert!(log.contains("process 1 (host host2): no sign of life for "), "{log}");
}

/// A supervised job on hosts, one of which loses its network: a spare takes over, or the rest go on
/// with the same batches.
#[test]
#[ignore = "long: needs root"]
fn long_a_job_goes_on_without_a_host() {
    let Some(script) = script("hosts.sh", &["ip", "unshare", "nsenter"]) else { return };
    let folder = Folder::new();
    let long = ["--max_steps", "60", "--save_steps", "5", "--per_device_train_batch_size", "12"];
    let args = [&long[..], &["--num_cores", "2", "--output_dir", "expected"]].concat();
    ends(process(&folder, &flags(&args)), 0);
    for (name, processes, cores, batch, cut) in [
        ("spare", "-n 2 --hosts host1,host2,host3", "2", "12", "host2"),
        ("fewer", "-n 3 --min_processes 2 --hosts host1,host2,host3", "3", "8", "host3"),
    ] {
        let line = format!(
            "export UCX_TLS=tcp,self HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=$HOSTS/ssh; \
             \"$0\" launch --mpiexec $MPIEXEC {processes} \"$@\" > {name}.log 2>&1 & \
             until grep -q 'step 22/60' {name}.log; do sleep 0.05; done; \
             $HOSTS/ssh {cut} ip link set eth0 down; wait $!"
        );
        let more = ["--num_cores", cores, "--per_device_train_batch_size", batch];
        let name: &'static str = name;
        let more = [&long[..4], &more, &["--output_dir", name]].concat();
        let mut command =
            by(&script, &["3", "bash", "-c", &line], &process(&folder, &flags(&more)));
        command.env("MPIEXEC", fullshard_testing::mpi().mpiexec);
        let output = command.output().unwrap();
        let log = std::fs::read_to_string(folder.path(&format!("{name}.log"))).unwrap();
        assert!(output.status.success(), "{log}{}", all_text(&output));
        assert_eq!(log.matches("launch: restart ").count(), 1, "{log}");
        assert!(log.contains("restart 1 with 2 processes; step 20 was saved"), "{log}");
        assert_close(&folder, name, "expected");
    }
}

/// `srun` with Slurm's PMI2, and MPICH's own launcher in an allocation.
#[test]
#[ignore = "long: needs root and Slurm"]
fn long_slurm_trains_as_one_process_does() {
    let programs = ["munged", "slurmctld", "slurmd", "srun", "ip", "unshare", "nsenter"];
    let Some(script) = script("slurm.sh", &programs) else { return };
    let folder = folder("2");
    for (name, line) in [
        ("srun", "srun --kill-on-bad-exit=1 -N 2 -n 2 --mpi=pmi2 TRAIN"),
        ("salloc", "salloc --quiet -N 2 -n 2 $MPIEXEC TRAIN"),
    ] {
        on_two_hosts(&folder, &script, line, &["--output_dir", name]);
        assert_same(&folder, name, "expected");
    }
    // Two processes on each of two nodes.
    let args = ["--num_cores", "4", "--per_device_train_batch_size", "2", "--output_dir", "four"];
    on_two_hosts(&folder, &script, "srun --kill-on-bad-exit=1 -N 2 -n 4 --mpi=pmi2 TRAIN", &args);
    assert_close(&folder, "four", "expected");

    let printed = on_two_hosts(&folder, &script, "srun -N 2 -n 2 RENDEZVOUS", &[]);
    assert!(printed.contains("by Slurm"), "{printed}");
    assert!(printed.contains("2 processes on 2 hosts found one another"), "{printed}");
    let line = "! srun -N 2 -n 2 --mpi=none TRAIN";
    let printed = on_two_hosts(&folder, &script, line, &["--output_dir", "none"]);
    assert!(printed.contains("srun --mpi=pmi2"), "{printed}");
    assert!(!folder.path("none").exists());
}

/// All nodes stop at the same step when Slurm signals the job, as it does before its time is over.
#[test]
#[ignore = "long: needs root and Slurm"]
fn long_slurm_stops_a_job() {
    let Some(script) = script("slurm.sh", &["munged", "slurmctld", "slurmd"]) else { return };
    let folder = folder("2");
    let line = "srun --kill-on-bad-exit=1 -N 2 -n 2 --mpi=pmi2 TRAIN & \
                until grep -q '  loss ' train.log; do sleep 0.1; done; \
                scancel --signal=TERM --state=running --me; ! wait $!";
    let line = line.replace("TRAIN", "TRAIN > train.log 2>&1");
    let args = ["--max_steps", "100000", "--save_steps", "100000"];
    on_two_hosts(&folder, &script, &line, &args);
    let log = std::fs::read_to_string(folder.path("train.log")).unwrap();
    assert!(log.contains("stopped by SIGTERM after step "), "{log}");
    let step = folder.json("out/trainer_state.json")["global_step"].as_u64().unwrap();
    assert!(folder.path(&format!("out/checkpoint-{step}")).is_dir(), "{log}");
}

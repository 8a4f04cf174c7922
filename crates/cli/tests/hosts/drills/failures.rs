//! What can happen to a job.

use super::system::Host;
use super::times::since;
use super::{Drill, Failed, send};
use crate::stderr;
use fullshard_checkpoint::Checksum;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// One process, somewhere in a step.
pub fn kill_one(drill: &mut Drill) -> Failed {
    wait_a_little(drill);
    let process = drill.process(drill.random as usize >> 40 & 1);
    send(process, Signal::KILL);
    Failed::now()
}

pub fn kill_both(drill: &mut Drill) -> Failed {
    wait_a_little(drill);
    let both = [drill.process(0), drill.process(1)];
    both.into_iter().for_each(|process| send(process, Signal::KILL));
    Failed::now()
}

/// A process of the next generation, while it meets the others, loads its programs or the state.
pub fn kill_in_restart(drill: &mut Drill) -> Failed {
    let number = drill.draw(2) as usize;
    let killed = drill.process(number);
    send(killed, Signal::KILL);
    let next = drill.until(|| drill.find(number).filter(|found| *found != killed));
    std::thread::sleep(Duration::from_millis(drill.draw(300)));
    send(next, Signal::KILL);
    Failed::now()
}

/// A process at the next such point of a save: between the last `fsync` and the rename first of all.
pub fn kill_in_save(drill: &mut Drill) -> Failed {
    const POINTS: [&str; 5] = ["synced", "midway", "renamed", "writing", "committed"];
    let point = POINTS[(drill.step / super::STRETCH) as usize % POINTS.len()];
    drill.folder.write("point.new", point);
    let armed = drill.folder.path("point");
    fs::rename(drill.folder.path("point.new"), &armed).unwrap();
    drill.until(|| (!armed.exists()).then_some(()));
    Failed::now()
}

/// Nobody restarts the launcher but its user, with the same command. Its processes notice that it
/// is gone.
pub fn kill_launcher(drill: &mut Drill) -> Failed {
    wait_a_little(drill);
    drill.run.signal("-KILL");
    let mut failed = Failed::now();
    drill.until(|| (drill.find(0).is_none() && drill.find(1).is_none()).then_some(()));
    failed.seen = Some(since(failed.at, SystemTime::now()));
    drill.start_again();
    failed
}

/// A process, and what its host has of the state, if it has copies; another one has them, too.
pub fn lose_host(drill: &mut Drill) -> Failed {
    let number = drill.draw(2) as usize;
    send(drill.process(number), Signal::KILL);
    let failed = Failed::now();
    if let Some(copies) = copies(drill) {
        fs::remove_dir_all(copies.join(format!("process-{number}"))).unwrap();
    }
    failed
}

/// The folder of the run's copies, if it has some.
fn copies(drill: &Drill) -> Option<PathBuf> {
    let name = Checksum::of(drill.folder.path("out").as_os_str().as_encoded_bytes()).to_string();
    let user = format!("fullshard-{}", rustix::process::geteuid().as_raw());
    let places = [drill.folder.path(&user), Path::new("/dev/shm").join(&user)];
    places.map(|place| place.join(&name)).into_iter().find(|place| place.is_dir())
}

pub fn freeze(drill: &mut Drill) -> Failed {
    let number = drill.draw(2) as usize;
    send(drill.process(number), Signal::STOP);
    Failed::now()
}

/// The host of process 1 cannot be reached. A spare takes over.
pub fn cut_network(drill: &mut Drill) -> Failed {
    let host = Host::of(drill.process(1));
    host.run("ip link set eth0 down");
    drill.host = Some(host);
    Failed::now()
}

pub fn mend_network(drill: &mut Drill) {
    drill.host.take().unwrap().run("ip link set eth0 up");
}

/// A host cannot write to the output folder, which the other can: the next save fails on both. Then
/// the other's process is lost, while the disk is still full. Process 0 needs some room to start.
pub fn fill_disk(drill: &mut Drill) -> Failed {
    let number = drill.draw(2) as usize;
    let host = Host::of(drill.process(number));
    let failures = |drill: &Drill| stderr(&drill.folder).matches("no checkpoint was saved").count();
    let before = failures(drill);
    host.fill(&drill.folder.path("out"));
    let filled = SystemTime::now();
    drill.host = Some(host);
    drill.until(|| (failures(drill) > before).then_some(()));
    let seen = Some(since(filled, SystemTime::now()));
    let restarts = |drill: &Drill| stderr(&drill.folder).matches("launch: restart ").count();
    let before = restarts(drill);
    send(drill.process(1 - number), Signal::KILL);
    let failed = Failed { seen, ..Failed::now() };
    if number == 0 {
        drill.until(|| (restarts(drill) > before + 1).then_some(()));
        free_disk(drill);
    }
    failed
}

pub fn free_disk(drill: &mut Drill) {
    if let Some(host) = drill.host.take() {
        host.free(&drill.folder.path("out"));
    }
}

/// Some part of a step.
fn wait_a_little(drill: &mut Drill) {
    std::thread::sleep(Duration::from_millis(drill.draw(40)));
}

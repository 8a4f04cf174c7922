//! Drills: failures of one kind, one after another in a supervised run. The job goes on by itself
//! and ends as one that nothing happened to, bit for bit.
//!
//! Three failures of each kind in CI, thirty in the long tier, which prints how soon a failure was
//! seen, how soon the job was back where it was, and what was lost:
//!
//!     cargo test -p fullshard-cli --test hosts -- --ignored --nocapture --test-threads 1 long_thirty

mod failures;
mod goodput;
mod guarded;
mod recovery;
mod system;
mod times;

use super::common::{Folder, Running};
use super::{Outcome, ends, flags, launch, process, processes_of, stderr};
use failures::*;
use fullshard_checkpoint::list;
use fullshard_checkpoint::sharded::verify;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};
use times::Times;

/// The steps that each failure has to itself, and those at the end.
const STRETCH: u64 = 20;

/// A kind of failure.
struct Kind {
    name: &'static str,
    /// Writes what its run needs into the folder.
    prepare: fn(&Folder),
    /// The number of processes.
    processes: &'static str,
    /// The flags of the run besides the usual ones.
    flags: &'static [&'static str],
    /// Variables of its environment.
    variables: &'static [(&'static str, &'static str)],
    /// The step from which on something may fail.
    first: u64,
    /// How many hosts it has, if each process is to have its own.
    hosts: Option<&'static str>,
    /// Causes a failure, and returns when.
    fail: fn(&mut Drill) -> Failed,
    /// Undoes what the next generation need not find.
    heal: fn(&mut Drill),
}

/// A kind without anything special.
const PLAIN: Kind = Kind {
    name: "",
    prepare: |_| {},
    processes: "2",
    flags: &[],
    variables: &[],
    first: 6,
    hosts: None,
    fail: kill_one,
    heal: |_| {},
};

/// When something failed, and after how many seconds that was seen if the launcher does not record
/// it.
struct Failed {
    at: SystemTime,
    seen: Option<f64>,
}

impl Failed {
    fn now() -> Failed {
        Failed { at: SystemTime::now(), seen: None }
    }
}

/// Makes two tests of each kind.
macro_rules! drills {
    ($($module:ident: $kind:expr;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn three() {
                check(&$kind, 3);
            }

            #[test]
            #[ignore = "long: thirty failures"]
            fn long_thirty() {
                check(&$kind, 30);
            }
        }
    )*};
}

drills! {
    killed: Kind { name: "SIGKILL of one process", ..PLAIN };
    both_killed: Kind { name: "SIGKILL of both", fail: kill_both, ..PLAIN };
    killed_in_collectives: Kind {
        name: "SIGKILL in a collective",
        variables: &[("FULLSHARD_MPI_DELAY_MS", "4")],
        ..PLAIN
    };
    killed_in_saves: Kind {
        name: "SIGKILL at a point of a save",
        variables: &[("FULLSHARD_KILL_AT", "point")],
        fail: kill_in_save,
        ..PLAIN
    };
    killed_in_restarts: Kind {
        name: "SIGKILL, and again in the restart",
        fail: kill_in_restart,
        ..PLAIN
    };
    killed_launchers: Kind {
        name: "SIGKILL of the launcher",
        flags: &["--resume_from_checkpoint", "auto"],
        fail: kill_launcher,
        ..PLAIN
    };
    lost_hosts: Kind {
        name: "SIGKILL, and the copies of that host lost",
        flags: &["--save_steps", "1000", "--replicate_state", "5", "--replicate_dir", "."],
        fail: lose_host,
        ..PLAIN
    };
    frozen: Kind { name: "SIGSTOP of one process", fail: freeze, ..PLAIN };
    cut_networks: Kind {
        name: "network of one host cut",
        hosts: Some("3"),
        fail: cut_network,
        heal: mend_network,
        ..PLAIN
    };
    full_disks: Kind {
        name: "full disk of one host, then SIGKILL",
        hosts: Some("2"),
        fail: fill_disk,
        heal: free_disk,
        ..PLAIN
    };
}

/// A run of this kind of failure.
struct Drill {
    kind: &'static Kind,
    folder: Folder,
    run: Running,
    /// The flags of the run.
    flags: Vec<&'static str>,
    failures: u64,
    random: u64,
    /// The last step that was printed.
    step: u64,
    /// The host that something was done to.
    host: Option<system::Host>,
}

/// Causes failures of a kind, and checks that the run ends as one that nothing happened to. Without
/// root or a program of the system that the kind needs, it says so and does nothing.
fn check(kind: &'static Kind, failures: u64) {
    if kind.hosts.is_some() && system::hosts_script().is_none() {
        return;
    }
    drill(kind, failures).outcome.assert_is(expected(failures));
}

/// A run that has ended well, and the times of its failures.
struct Ended {
    folder: Folder,
    outcome: Outcome,
    times: Times,
}

/// Causes failures of a kind.
fn drill(kind: &'static Kind, failures: u64) -> Ended {
    let mut drill = Drill::start(kind, failures);
    let mut times = Times::default();
    for failure in 0..failures {
        let after = drill.draw(STRETCH / 2);
        drill.reach(STRETCH * failure + kind.first + after);
        let failed = (kind.fail)(&mut drill);
        let before = drill.catch_up();
        times.add(&failed, before, &drill.folder);
        (kind.heal)(&mut drill);
    }
    println!("{}: {failures} failures; {times}", kind.name);
    drill.end(times)
}

/// The same run without a failure.
fn undisturbed(kind: &'static Kind, failures: u64) -> Ended {
    Drill::start(kind, failures).end(Times::default())
}

impl Drill {
    /// Starts the run.
    fn start(kind: &'static Kind, failures: u64) -> Drill {
        let folder = Folder::new();
        (kind.prepare)(&folder);
        let flags = [&steps(failures), kind.flags].concat();
        let run = start(&folder, kind, failures, &flags);
        Drill { kind, folder, run, flags, failures, random: 7, step: 0, host: None }
    }

    /// Starts the run once more, with the same command.
    fn start_again(&mut self) {
        self.run = start(&self.folder, self.kind, self.failures, &self.flags);
    }

    /// A number below another.
    fn draw(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) % below
    }

    /// Waits until the run has done a step.
    fn reach(&mut self, step: u64) {
        while self.step < step {
            let line = self.line();
            self.step = self.step.max(step_in(&line).unwrap_or(0));
        }
    }

    /// Waits until the next generation is as far as those before; returns how far they were.
    fn catch_up(&mut self) -> u64 {
        let mut restarted = false;
        loop {
            let line = self.line();
            restarted |= line.contains("training for ");
            let Some(step) = step_in(&line).filter(|step| *step >= self.step) else { continue };
            let before = std::mem::replace(&mut self.step, step);
            if restarted {
                return before;
            }
        }
    }

    fn line(&mut self) -> String {
        let line = self.run.line();
        line.unwrap_or_else(|| panic!("{}{}", self.run.printed, stderr(&self.folder)))
    }

    /// A process of the newest generation, if it runs.
    fn find(&self, number: usize) -> Option<Pid> {
        processes_of(&self.folder, number).into_iter().max_by_key(|found| found.0).map(|it| it.1)
    }

    /// A process that runs.
    fn process(&self, number: usize) -> Pid {
        self.until(|| self.find(number))
    }

    /// Waits for something.
    fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{}", stderr(&self.folder));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Checks that the run ends well, with intact checkpoints.
    fn end(self, times: Times) -> Ended {
        let (status, printed) = self.run.end();
        assert!(status.success(), "{printed}{}", stderr(&self.folder));
        for listed in list(&self.folder.path("out")).unwrap() {
            let problems = verify(&listed.path, &mut |_| ()).unwrap();
            assert!(problems.is_empty(), "{problems:?}");
        }
        let outcome = Outcome::of(&self.folder, "out");
        Ended { folder: self.folder, outcome, times }
    }
}

/// The flags of a run that is long enough for some failures.
fn steps(failures: u64) -> [&'static str; 6] {
    let steps = (STRETCH * (failures + 1)).to_string().leak();
    ["--max_steps", steps, "--save_steps", "5", "--save_total_limit", "2"]
}

/// The outcome of a run that nothing happens to.
fn expected(failures: u64) -> &'static Outcome {
    fn by_one_process(failures: u64) -> Outcome {
        let folder = Folder::new();
        ends(process(&folder, &flags(&steps(failures))), 0);
        Outcome::of(&folder, "out")
    }
    static SHORT: LazyLock<Outcome> = LazyLock::new(|| by_one_process(3));
    static LONG: LazyLock<Outcome> = LazyLock::new(|| by_one_process(30));
    match failures {
        3 => &SHORT,
        30 => &LONG,
        _ => panic!("runs have 3 or 30 failures"),
    }
}

fn start(folder: &Folder, kind: &Kind, failures: u64, more: &[&'static str]) -> Running {
    // Silence is a failure after five seconds; here it is after two, where every second counts.
    let timeout = if failures == 3 { "2" } else { "5" };
    let watched = ["--heartbeat_timeout_s", timeout];
    let mut command: Command = match kind.hosts {
        Some(count) => system::launch_on_hosts(folder, count, &watched, &flags(more)),
        None => launch(folder, kind.processes, &[&watched[..], &flags(more)].concat()),
    };
    command.envs(kind.variables.iter().copied());
    Running::start(folder, command)
}

/// The step of a line of the log.
fn step_in(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("step ").filter(|_| line.contains("  epoch"))?;
    rest.split_once('/')?.0.trim().parse().ok()
}

/// Sends a signal.
fn send(process: Pid, signal: Signal) {
    kill_process(process, signal).unwrap();
}

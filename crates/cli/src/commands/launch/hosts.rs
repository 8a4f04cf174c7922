//! The hosts that processes are started on, and which of them answer.

use fullshard::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a host may take to start a process.
const ANSWER: Duration = Duration::from_secs(10);

/// The hosts of a job, in order of preference.
pub struct Hosts {
    names: Vec<String>,
    /// Processes per host.
    per_host: usize,
    mpiexec: PathBuf,
    /// Those that answered last.
    available: Vec<String>,
}

impl Hosts {
    /// The hosts for a number of processes, if any are named.
    pub fn new(
        names: &[String],
        processes: usize,
        mpiexec: Option<&Path>,
    ) -> Result<Option<Hosts>> {
        let (false, Some(mpiexec)) = (names.is_empty(), mpiexec) else { return Ok(None) };
        let count = names.len();
        if processes > count && !processes.is_multiple_of(count) {
            return Err(Error::Usage(format!(
                "--hosts names {count} hosts, which cannot have {processes} processes equally: use \
                 a multiple of {count}"
            )));
        }
        let (per_host, names) = (processes.div_ceil(count), names.to_vec());
        let available = names.clone();
        Ok(Some(Hosts { names, per_host, mpiexec: mpiexec.to_owned(), available }))
    }

    /// Finds out which hosts answer, and returns how many processes they can have.
    pub fn look(&mut self) -> usize {
        let probes: Vec<Option<Child>> = self.names.iter().map(|host| self.probe(host)).collect();
        let end = Instant::now() + ANSWER;
        let answers =
            probes.into_iter().map(|probe| probe.is_some_and(|probe| answers(probe, end)));
        let found = self.names.iter().zip(answers).filter(|(_, answers)| *answers);
        self.available = found.map(|(host, _)| host.clone()).collect();
        self.available.len() * self.per_host
    }

    /// The hosts for a number of processes.
    pub fn chosen(&self, processes: usize) -> Vec<String> {
        let needed = processes.div_ceil(self.per_host);
        self.available.iter().take(needed).cloned().collect()
    }

    /// Starts a process that does nothing on a host.
    fn probe(&self, host: &str) -> Option<Child> {
        let mut command = Command::new(&self.mpiexec);
        command.args(["-hosts", host, "-n", "1", "true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok()
    }
}

/// Whether a process ends well in time. It is killed if not.
fn answers(mut probe: Child, end: Instant) -> bool {
    loop {
        match probe.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            _ => break,
        }
    }
    let _ = probe.kill();
    let _ = probe.wait();
    false
}

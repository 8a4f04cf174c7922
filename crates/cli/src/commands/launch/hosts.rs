//! The hosts that processes are started on, and which of them answer.

use fullshard::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a host may take to start a process.
const ANSWER: Duration = Duration::from_secs(10);

/// How long the others have once enough hosts for all processes have answered.
const PREFERENCE: Duration = Duration::from_secs(1);

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

    /// Finds out which hosts answer, and returns how many processes they can have. It does not wait
    /// long for more than `wanted`.
    pub fn look(&mut self, wanted: usize) -> usize {
        let mut probes: Vec<Probe> = self.names.iter().map(|host| self.probe(host)).collect();
        let (start, mut enough) = (Instant::now(), None);
        loop {
            probes.iter_mut().for_each(Probe::look);
            let found = probes.iter().filter(|probe| probe.answer == Some(true)).count();
            if found * self.per_host >= wanted {
                enough.get_or_insert_with(Instant::now);
            }
            let is_late = start.elapsed() > ANSWER
                || enough.is_some_and(|enough| enough.elapsed() > PREFERENCE);
            if is_late || probes.iter().all(|probe| probe.answer.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = self.names.iter().zip(&probes).filter(|(_, probe)| probe.answer == Some(true));
        self.available = found.map(|(host, _)| host.clone()).collect();
        self.available.len() * self.per_host
    }

    /// The hosts for a number of processes.
    pub fn chosen(&self, processes: usize) -> Vec<String> {
        let needed = processes.div_ceil(self.per_host);
        self.available.iter().take(needed).cloned().collect()
    }

    /// Starts a process that does nothing on a host.
    fn probe(&self, host: &str) -> Probe {
        let mut command = Command::new(&self.mpiexec);
        command.args(["-hosts", host, "-n", "1", "true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().ok();
        Probe { answer: child.is_none().then_some(false), child }
    }
}

/// A process that does nothing on a host. It is killed when this is dropped.
struct Probe {
    child: Option<Child>,
    /// Whether it ended well, once it has ended.
    answer: Option<bool>,
}

impl Probe {
    fn look(&mut self) {
        if let (None, Some(child)) = (self.answer, &mut self.child) {
            self.answer = match child.try_wait() {
                Ok(status) => status.map(|status| status.success()),
                Err(_) => Some(false),
            };
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(child) = self.child.as_mut().filter(|_| self.answer.is_none()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

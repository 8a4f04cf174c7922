//! Starts the processes of a job: each by itself, or all by an `mpiexec`.

use crate::output::complain;
use fullshard::{Error, Result};
use fullshard_cluster::Generation;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, wait};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest line that is kept together.
const LONGEST_LINE: u64 = 64 << 10;

/// How long output may take to arrive after the processes have ended.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// What to start.
pub struct Job<'a> {
    pub program: &'a Path,
    pub args: &'a [OsString],
    pub count: usize,
    pub address: String,
    pub secret: String,
    pub generation: Generation,
}

/// How to start it.
#[derive(Debug)]
pub enum Way<'a> {
    /// One child per process.
    Direct,
    /// One child, which starts the processes with MPI's variables.
    Mpiexec(&'a Path),
    /// The same, on other hosts.
    Hosts(&'a Path, Vec<String>),
}

/// What was started: processes, or the `mpiexec` of all. They are killed when this is dropped.
pub struct Processes {
    pub children: Vec<Started>,
    printers: Vec<JoinHandle<()>>,
}

/// A child, and its exit code once it has ended.
pub struct Started {
    pub name: String,
    pub child: Child,
    pub code: Option<u8>,
}

/// Whose lines a stream has.
#[derive(Debug, Clone, Copy)]
enum Lines {
    /// Those of a process other than 0.
    Of(usize),
    /// Those of all, marked `[0] ` and so on by `mpiexec`. Process 0's go to standard output.
    MarkedStdout,
    /// The same, and process 0's go to standard error.
    MarkedStderr,
}

/// Starts all processes.
pub fn start(job: &Job, way: Way) -> Result<Processes> {
    // What outlives a killed `mpiexec` becomes ours: see `end_orphans`.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    let mut processes = Processes { children: Vec::new(), printers: Vec::new() };
    match way {
        Way::Direct => {
            for process in 0..job.count {
                let mut command = command(job, job.program.as_os_str());
                command.args(job.args).env("FULLSHARD_PROCESS_ID", process.to_string());
                let lines = [Lines::Of(process); 2];
                let lines = Some(lines).filter(|_| process != 0);
                processes.add(format!("process {process}"), command, lines)?;
            }
        }
        Way::Mpiexec(mpiexec) => processes.add_mpiexec(job, mpiexec, &[])?,
        Way::Hosts(mpiexec, hosts) => processes.add_mpiexec(job, mpiexec, &hosts)?,
    }
    Ok(processes)
}

/// A command with the job's variables. Ctrl-C in a terminal goes to the launcher alone, which
/// passes it on: a process that gets it twice would end without saving.
fn command(job: &Job, program: &OsStr) -> Command {
    let mut command = Command::new(program);
    command
        .env("FULLSHARD_COORDINATOR", &job.address)
        .env("FULLSHARD_COORDINATOR_RUNS", "true")
        .env("FULLSHARD_NUM_PROCESSES", job.count.to_string())
        .env("FULLSHARD_SECRET", &job.secret)
        .env("FULLSHARD_GENERATION", job.generation.number.to_string())
        .env("FULLSHARD_LAUNCHED_AT", job.generation.launched_at.to_string())
        .stdin(Stdio::null())
        .process_group(0);
    match job.generation.full_processes {
        Some(full) => command.env("FULLSHARD_FULL_PROCESSES", full.to_string()),
        None => command.env_remove("FULLSHARD_FULL_PROCESSES"),
    };
    command
}

impl Processes {
    /// Starts all processes by an `mpiexec`: here, or on other hosts.
    fn add_mpiexec(&mut self, job: &Job, mpiexec: &Path, hosts: &[String]) -> Result<()> {
        let mut command = command(job, mpiexec.as_os_str());
        command.args(["-prepend-rank", "-n", &job.count.to_string()]);
        if !hosts.is_empty() {
            let per_host = job.count.div_ceil(hosts.len()).to_string();
            command.args(["-hosts", &hosts.join(","), "-ppn", &per_host]);
        }
        command.arg(job.program).args(job.args).env_remove("FULLSHARD_PROCESS_ID");
        let lines = [Lines::MarkedStdout, Lines::MarkedStderr];
        self.add("mpiexec".to_owned(), command, Some(lines))
    }

    /// Starts a child. Its output is printed line by line, if it is marked.
    fn add(&mut self, name: String, mut command: Command, lines: Option<[Lines; 2]>) -> Result<()> {
        if lines.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Error::Usage(format!("cannot start {name} ({program}): {error}"))
        })?;
        if let Some([out, err]) = lines {
            let streams: [Option<(Box<dyn Read + Send>, Lines)>; 2] = [
                child.stdout.take().map(|stream| (Box::new(stream) as _, out)),
                child.stderr.take().map(|stream| (Box::new(stream) as _, err)),
            ];
            for (stream, lines) in streams.into_iter().flatten() {
                self.printers.push(std::thread::spawn(move || print(stream, lines)));
            }
        }
        self.children.push(Started { name, child, code: None });
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for started in self.children.iter_mut().filter(|started| started.code.is_none()) {
            let _ = started.child.kill();
            let _ = started.child.wait();
        }
        // What they have started themselves may hold the streams open for longer.
        let end = Instant::now() + LAST_OUTPUT;
        while self.printers.iter().any(|printer| !printer.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Ends whatever a generation left behind: a frozen process would hold the output folder's lock.
pub fn end_orphans() {
    let children = || {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let lists = threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let lists: String = lists.collect();
        let pids = lists.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        pids.collect::<Vec<_>>()
    };
    let end = Instant::now() + LAST_OUTPUT;
    loop {
        let left = children();
        if left.is_empty() || Instant::now() > end {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Prints the lines of a stream, each in one piece.
fn print(stream: impl Read, lines: Lines) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while matches!((&mut stream).take(LONGEST_LINE).read_until(b'\n', &mut line), Ok(read) if read > 0)
    {
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        let own = line.strip_prefix(b"[0] ".as_slice());
        let _ = match (lines, own) {
            (Lines::Of(process), _) => {
                let marked = [format!("[{process}] ").as_bytes(), &line].concat();
                std::io::stderr().write_all(&marked)
            }
            (Lines::MarkedStdout, Some(own)) => std::io::stdout().write_all(own),
            (Lines::MarkedStderr, Some(own)) => std::io::stderr().write_all(own),
            (_, None) => std::io::stderr().write_all(&line),
        };
        line.clear();
    }
}

/// Says how a child ended, unless that was well.
pub fn report(name: &str, status: std::process::ExitStatus) {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => (),
        (Some(code), _) => complain!("launch: {name} ended with exit code {code}"),
        (None, Some(signal)) => complain!("launch: {name} was killed by signal {signal}"),
        (None, None) => complain!("launch: {name} ended: {status}"),
    }
}

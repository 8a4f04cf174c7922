//! Jobs of real processes, which are killed and stopped.

use super::*;
use fullshard_cluster::{Flags, detect, environment};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// A process of a job, started by the tests below: joins, waits for ever, and prints why not.
#[test]
#[ignore = "child: started by other tests"]
fn child_member() {
    let launch = detect(&Flags::default(), &environment()).unwrap().unwrap();
    let member = join(&launch, Options { heartbeat: quick(), ..options() }).unwrap();
    println!("joined");
    let error = member.get("never", Duration::from_secs(60)).unwrap_err();
    println!("ended: {error}");
}

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(job: &Job, process: usize) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child_member", "--ignored", "--nocapture"])
            .env("FULLSHARD_COORDINATOR", job.address.to_string())
            .env("FULLSHARD_NUM_PROCESSES", job.count.to_string())
            .env("FULLSHARD_PROCESS_ID", process.to_string())
            .env("FULLSHARD_SECRET", &job.secret)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output }
    }

    /// The rest of the next line that starts so.
    fn line(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no line {start:?}");
            // The test harness writes before it.
            if let Some(position) = line.find(start) {
                return line[position + start.len()..].trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a job, all of whose processes have joined.
fn start(count: usize) -> Vec<Process> {
    // A free port: process 0 binds it again.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let job = Job { count, address, secret: random_secret().unwrap() };
    let mut processes: Vec<_> = (0..count).map(|process| Process::start(&job, process)).collect();
    for process in &mut processes {
        process.line("joined");
    }
    processes
}

/// Signals one process, and returns what the others say and after which time the last of them did.
fn signal(processes: &mut [Process], victim: usize, signal: Signal) -> (Vec<String>, Duration) {
    let start = Instant::now();
    processes[victim].signal(signal);
    let others = processes.iter_mut().enumerate().filter(|(process, _)| *process != victim);
    let messages = others.map(|(_, process)| process.line("ended: ")).collect();
    (messages, start.elapsed())
}

#[test]
fn a_killed_process_is_noticed_at_once() {
    let mut processes = start(4);
    let (messages, time) = signal(&mut processes, 2, Signal::KILL);
    println!("killed process noticed by all after {time:.1?}");
    assert!(time < Duration::from_secs(2), "{time:?}");
    for message in messages {
        assert!(message.starts_with("process 2 (host "), "{message}");
        assert!(message.contains("its connection closed"), "{message}");
    }
}

#[test]
fn a_killed_coordinator_is_noticed_at_once() {
    let mut processes = start(3);
    let (messages, time) = signal(&mut processes, 0, Signal::KILL);
    println!("killed coordinator noticed by all after {time:.1?}");
    assert!(time < Duration::from_secs(2), "{time:?}");
    for message in messages {
        assert!(message.starts_with("the coordinator of the job at 127.0.0.1:"), "{message}");
    }
}

#[test]
fn a_stopped_process_is_noticed_when_it_is_silent_for_long() {
    let mut processes = start(3);
    let (messages, time) = signal(&mut processes, 1, Signal::STOP);
    println!("stopped process noticed by all after {time:.1?}");
    assert!(time >= quick().timeout && time < Duration::from_secs(4), "{time:?}");
    for message in messages {
        assert!(message.starts_with("process 1 (host "), "{message}");
        assert!(message.contains("no sign of life"), "{message}");
    }
}

#[test]
fn a_stopped_coordinator_is_noticed_when_it_is_silent_for_long() {
    let mut processes = start(2);
    let (messages, time) = signal(&mut processes, 0, Signal::STOP);
    println!("stopped coordinator noticed after {time:.1?}");
    assert!(time >= quick().timeout && time < Duration::from_secs(4), "{time:?}");
    assert!(messages[0].starts_with("the coordinator of the job at"), "{messages:?}");
}

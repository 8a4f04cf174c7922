//! Jobs of several members: as threads, with strangers at the port, and as processes.
#![allow(clippy::unwrap_used)]

mod processes;
mod strangers;
mod threads;

use fullshard_cluster::{
    Heartbeat, Launch, Launcher, Member, Options, Result, join, listen, random_secret,
};
use std::net::SocketAddr;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// Where a job's coordinator listens, with its secret.
#[derive(Clone)]
struct Job {
    count: usize,
    address: SocketAddr,
    secret: String,
}

impl Job {
    fn launch(&self, process_id: usize) -> Launch {
        Launch {
            num_processes: self.count,
            process_id,
            local_process_id: None,
            coordinator: Some(self.address.to_string()),
            coordinator_runs: false,
            secret: Some(self.secret.clone()),
            by: Launcher::Flags,
        }
    }

    fn join(&self, process: usize) -> Result<Member> {
        join(&self.launch(process), options())
    }
}

fn options() -> Options {
    Options { timeout: LONG, ..Options::new("1.2.3") }
}

/// A heartbeat that tests can wait for.
fn quick() -> Heartbeat {
    Heartbeat { interval: Duration::from_millis(200), timeout: Duration::from_millis(1500) }
}

/// A job, and the options of its process 0, whose port is bound already.
fn job(count: usize) -> (Job, Options) {
    let listener = listen(0, true).unwrap();
    let address = listener.local_addr().unwrap();
    let job = Job { count, address, secret: random_secret().unwrap() };
    (job, Options { listener: Some(listener), ..options() })
}

/// What all processes say, each on its thread, in their order.
fn all<T: Send>(processes: usize, each: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processes)
            .map(|process| {
                scope.spawn({
                    let each = &each;
                    move || each(process)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The members of a job of threads.
fn members(count: usize) -> Vec<Member> {
    let (job, first) = job(count);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count)
            .map(|process| {
                let job = job.clone();
                scope.spawn(move || job.join(process).unwrap())
            })
            .collect();
        let mut members = vec![join(&job.launch(0), first).unwrap()];
        members.extend(others.into_iter().map(|other| other.join().unwrap()));
        members
    })
}

/// Leaves the job, all at once.
fn leave(members: &[Member]) {
    for left in all(members.len(), |process| members[process].leave(LONG)) {
        left.unwrap();
    }
}

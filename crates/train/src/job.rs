//! The processes of a job, as training needs them: they agree on what each would decide alone.
//!
//! Every process runs the same sequence of launches, so whatever changes that sequence (a signal, a
//! damaged checkpoint, a disk that is full) is agreed upon first. One process alone agrees with
//! itself at once.

use crate::error::Error;
use fullshard_core::Process;
use std::collections::HashSet;
use std::error::Error as StdError;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The bytes that are published at once. Compiled programs may have hundreds of megabytes.
const PIECE: usize = 32 << 20;

/// What [`Peers`] fail with.
pub type PeersError = Box<dyn StdError + Send + Sync>;

/// The way to the other processes of a job. Names are used once per job.
pub trait Peers: Send + Sync {
    /// The place of this process.
    fn process(&self) -> Process;

    /// Waits until every process has called this with the same name; returns the bytes of all.
    fn gather(&self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, PeersError>;

    /// Publishes bytes under a name.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), PeersError>;

    /// Waits for the bytes that some process publishes.
    fn get(&self, name: &str) -> Result<Vec<u8>, PeersError>;

    /// Passes on a range of bytes of a file in the folder that another process serves, and returns
    /// how many there were.
    fn fetch(
        &self,
        process: usize,
        name: &str,
        bytes: Range<u64>,
        add: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u64, PeersError>;
}

/// The job of a run: one process, or several with a way between them. Cheap to clone.
#[derive(Clone, Default)]
pub struct Job {
    peers: Option<Arc<dyn Peers>>,
    /// The names that this process has published.
    published: Arc<Mutex<HashSet<String>>>,
}

impl Job {
    /// A job of one process.
    pub fn alone() -> Job {
        Job::default()
    }

    /// The job that these are all processes of.
    pub fn of(peers: Arc<dyn Peers>) -> Job {
        let peers = Some(peers).filter(|peers| !peers.process().is_alone());
        Job { peers, ..Job::default() }
    }

    /// The place of this process.
    pub fn process(&self) -> Process {
        self.peers.as_ref().map_or(Process::alone(), |peers| peers.process())
    }

    /// Whether this is the process that writes and prints.
    pub fn is_first(&self) -> bool {
        self.process().index == 0
    }

    /// Whether there is no other process.
    pub fn is_alone(&self) -> bool {
        self.peers.is_none()
    }

    /// Publishes bytes under a name, in pieces, unless this process has done so before.
    pub(crate) fn publish(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let is_new = {
            let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
            published.insert(name.to_owned())
        };
        let Some(peers) = self.peers.as_ref().filter(|_| is_new) else { return Ok(()) };
        let pieces = bytes.chunks(PIECE);
        let count = pieces.len();
        for (i, piece) in pieces.enumerate() {
            peers.put(&format!("{name}/{i}"), piece).map_err(Error::Peers)?;
        }
        peers.put(name, &(count as u64).to_le_bytes()).map_err(Error::Peers)
    }

    /// Waits for the bytes that another process publishes; none if there is no other.
    pub(crate) fn published(&self, name: &str) -> Result<Vec<u8>, Error> {
        let Some(peers) = &self.peers else { return Ok(Vec::new()) };
        let count = peers.get(name).map_err(Error::Peers)?;
        let count = count.try_into().map(u64::from_le_bytes);
        let count = count.map_err(|_| Error::Peers(format!("`{name}` is no count").into()))?;
        let piece = |i: u64| peers.get(&format!("{name}/{i}")).map_err(Error::Peers);
        Ok((0..count).map(piece).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The bytes of every process, by its index.
    pub fn gather(&self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        match &self.peers {
            Some(peers) => peers.gather(name, bytes).map_err(Error::Peers),
            None => Ok(vec![bytes.to_vec()]),
        }
    }

    /// Passes on a range of bytes of a file in the folder that another process serves.
    pub fn fetch(
        &self,
        process: usize,
        name: &str,
        bytes: Range<u64>,
        add: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u64, PeersError> {
        match &self.peers {
            Some(peers) => peers.fetch(process, name, bytes, add),
            None => Err("there is no other process".into()),
        }
    }

    /// What the first process says. Others do not compute it.
    pub fn first_says(
        &self,
        name: &str,
        say: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Vec<u8>, Error> {
        if !self.is_first() {
            return self.published(name);
        }
        let said = say()?;
        self.publish(name, &said)?;
        Ok(said)
    }

    /// The outcome on all processes: the error of this one, or of the first other that failed.
    pub fn agree<T>(&self, name: &str, outcome: Result<T, Error>) -> Result<T, Error> {
        if self.is_alone() {
            return outcome;
        }
        let failed = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let all = self.gather(name, failed.as_bytes())?;
        let outcome = outcome?;
        match all.iter().position(|failed| !failed.is_empty()) {
            Some(process) => {
                let message = String::from_utf8_lossy(&all[process]).into_owned();
                Err(Error::OtherProcess { process, message })
            }
            None => Ok(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_agrees_with_itself() {
        let job = Job::alone();
        assert!(job.is_first() && job.is_alone());
        assert_eq!(job.gather("a", b"x").unwrap(), [b"x"]);
        assert_eq!(job.first_says("b", || Ok(vec![1])).unwrap(), [1]);
        assert_eq!(job.agree("c", Ok(3)).unwrap(), 3);
    }

    /// Two processes in one: what is put is there.
    #[derive(Default)]
    struct Shelf(Mutex<std::collections::HashMap<String, Vec<u8>>>);

    impl Peers for Shelf {
        fn process(&self) -> Process {
            Process { index: 0, count: 2 }
        }

        fn gather(&self, _: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
            Ok(vec![bytes.to_vec(), b"no space".to_vec()])
        }

        fn put(&self, name: &str, bytes: &[u8]) -> Result<(), PeersError> {
            assert!(bytes.len() <= PIECE);
            match self.0.lock().unwrap().insert(name.to_owned(), bytes.to_vec()) {
                Some(_) => Err("put twice".into()),
                None => Ok(()),
            }
        }

        fn get(&self, name: &str) -> Result<Vec<u8>, PeersError> {
            self.0.lock().unwrap().get(name).cloned().ok_or_else(|| "nothing".into())
        }

        fn fetch(
            &self,
            _: usize,
            _: &str,
            _: Range<u64>,
            _: &mut dyn FnMut(&[u8]) -> io::Result<()>,
        ) -> Result<u64, PeersError> {
            Err("nothing is served".into())
        }
    }

    #[test]
    fn large_values_are_published_in_pieces_and_once() {
        let job = Job::of(Arc::new(Shelf::default()));
        let bytes: Vec<u8> = (0..2 * PIECE + 5).map(|i| (i / 7) as u8).collect();
        job.publish("program", &bytes).unwrap();
        job.publish("program", &bytes).unwrap();
        assert!(job.published("program").unwrap() == bytes);
        assert!(job.published("other").is_err());
        job.publish("empty", &[]).unwrap();
        assert!(job.published("empty").unwrap().is_empty());
    }

    #[test]
    fn the_error_of_another_process_is_that_of_all() {
        let job = Job::of(Arc::new(Shelf::default()));
        let error = job.agree("save", Ok(())).unwrap_err().to_string();
        assert_eq!(error, "process 1: no space");
    }
}

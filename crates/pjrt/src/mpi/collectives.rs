//! Communicators of the collectives in programs.
//!
//! MPI matches collectives by their order on a communicator, and nothing orders the calls of a
//! program but their data. So each call has a communicator of its own per device, made when its
//! program is prepared. Programs share those that are equal, since they run one after another.

use super::MpiError;
use super::library::{Handle, IN_PLACE, Library, UNDEFINED};
use super::speaker::{Speaker, Task};
use crate::Result;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Milliseconds added to every collective. For tests and benchmarks.
const DELAY: &str = "FULLSHARD_MPI_DELAY_MS";

/// A collective between processes in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiCall {
    /// Its number in the program.
    pub channel: i64,
    /// The processes of each group, all groups of one size. None for a permute, which is between
    /// all processes.
    pub groups: Vec<Vec<usize>>,
}

/// The collectives of this process's programs.
pub struct Collectives {
    speaker: &'static Speaker,
    rank: usize,
    size: usize,
    delay: Duration,
    communicators: Mutex<HashMap<Key, Arc<Communicator>>>,
    /// Number of communicators that MPI created for us.
    created: AtomicUsize,
}

/// What a communicator is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) channel: i64,
    /// The device in this process.
    pub(crate) device: usize,
    /// The processes of all groups, one group after another.
    pub(crate) groups: Vec<i64>,
    pub(crate) group_size: i64,
}

/// The communicator of a call on a device.
#[derive(Debug)]
pub(crate) struct Communicator {
    pub(crate) handle: Handle,
    /// Whether a request is under way. A second one would be matched by chance.
    busy: AtomicBool,
}

/// A communicator that nobody else uses until this is dropped.
pub(crate) struct Reserved(Arc<Communicator>);

impl Reserved {
    pub(crate) fn handle(&self) -> Handle {
        self.0.handle
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Collectives {
    pub(super) fn new(speaker: &'static Speaker, rank: usize, size: usize) -> Collectives {
        let delay = std::env::var(DELAY).ok().and_then(|text| text.parse().ok());
        let delay = Duration::from_millis(delay.unwrap_or(0));
        let (communicators, created) = (Mutex::default(), AtomicUsize::new(0));
        Collectives { speaker, rank, size, delay, communicators, created }
    }

    /// Makes the communicators of a program that runs on `devices` devices of each process. All
    /// processes prepare the same programs in the same order, each before its first launch.
    pub fn prepare(&self, calls: &[MpiCall], devices: usize) -> Result<()> {
        let _turn = self.speaker.turn();
        for call in calls {
            self.check_groups(call)?;
        }
        let missing = self.missing(calls, devices);
        if missing.is_empty() {
            return Ok(());
        }
        self.agree(&missing)?;
        for key in missing {
            let handle = match self.shared(&key) {
                Some(handle) => handle,
                None => self.split(&key)?,
            };
            let communicator = Communicator { handle, busy: AtomicBool::new(false) };
            self.lock().insert(key, Arc::new(communicator));
        }
        Ok(())
    }

    fn check_groups(&self, call: &MpiCall) -> Result<(), MpiError> {
        let bad = |reason: String| Err(MpiError::Groups { channel: call.channel, reason });
        let mut seen = vec![false; self.size];
        for group in &call.groups {
            if group.is_empty() || group.len() != call.groups[0].len() {
                return bad("groups differ in size, or are empty".to_owned());
            }
            for &process in group {
                match seen.get_mut(process) {
                    None => return bad(format!("no process {process} among {}", self.size)),
                    Some(true) => return bad(format!("process {process} is in two groups")),
                    Some(seen) => *seen = true,
                }
            }
        }
        Ok(())
    }

    /// The communicators that are not there yet, in the same order on all processes.
    fn missing(&self, calls: &[MpiCall], devices: usize) -> Vec<Key> {
        let known = self.lock();
        let mut missing = Vec::new();
        for call in calls {
            for device in 0..devices {
                let group_size = call.groups.first().map_or(0, |group| group.len() as i64);
                let groups = call.groups.iter().flatten().map(|&process| process as i64).collect();
                let key = Key { channel: call.channel, device, groups, group_size };
                if !known.contains_key(&key) && !missing.contains(&key) {
                    missing.push(key);
                }
            }
        }
        missing
    }

    /// Waits until all processes are here with the same list. From then on none waits for another
    /// to finish a program, so that the thread of MPI may block.
    fn agree(&self, missing: &[Key]) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Iallreduce of the programs to prepare";
        let digest = digest(missing);
        let mut largest = Box::new([digest, !digest]);
        let data = largest.as_mut_ptr() as usize;
        self.speaker.wait(CALL, move |library| {
            let mut request = Handle::REQUEST_NULL;
            // SAFETY: MPI is started, and the two numbers live until the request is done.
            let code = unsafe {
                let (ty, op, world) = (Handle::UINT64, Handle::MAX, Handle::WORLD);
                let data = data as *mut c_void;
                (library.functions.iallreduce)(IN_PLACE, data, 2, ty, op, world, &raw mut request)
            };
            library.check_code(code, || CALL.to_owned())?;
            Ok(request)
        })?;
        let all_equal = *largest == [digest, !digest];
        if all_equal { Ok(()) } else { Err(MpiError::Different) }
    }

    /// A permute has one communicator for all devices, which device 0 gets first.
    fn shared(&self, key: &Key) -> Option<Handle> {
        let first = Key { device: 0, ..key.clone() };
        let communicator = self.lock().get(&first).cloned();
        communicator.filter(|_| key.groups.is_empty()).map(|communicator| communicator.handle)
    }

    /// Creates the communicator of this process's group.
    fn split(&self, key: &Key) -> Result<Handle, MpiError> {
        let place = key.groups.iter().position(|&process| process as usize == self.rank);
        let size = key.group_size.max(1) as usize;
        let (color, order) = match place {
            _ if key.groups.is_empty() => (0, self.rank),
            Some(place) => ((place / size) as c_int, place % size),
            None => (UNDEFINED, 0),
        };
        let created = self.created.fetch_add(1, Ordering::Relaxed);
        self.speaker.run(move |library, _| {
            let mut handle = Handle::WORLD;
            // SAFETY: MPI is started, and all processes do the same.
            let code = unsafe {
                let world = Handle::WORLD;
                (library.functions.comm_split)(world, color, order as c_int, &raw mut handle)
            };
            if code != 0 {
                return Err(MpiError::Communicators { created, message: library.message(code) });
            }
            if color != UNDEFINED {
                library.return_errors(handle)?;
            }
            Ok(handle)
        })
    }

    /// Reserves the communicator of a call.
    pub(crate) fn reserve(&self, key: &Key) -> Result<Reserved, String> {
        let Key { channel, device, .. } = key;
        if !key.groups.is_empty() && !key.groups.contains(&(self.rank as i64)) {
            return Err(format!("channel {channel}: process {} is in no group", self.rank));
        }
        let communicator = self.lock().get(key).cloned().ok_or_else(|| {
            format!(
                "channel {channel} of device {device} has no communicator for its groups: \
                 the program was not prepared"
            )
        })?;
        if communicator.busy.swap(true, Ordering::Acquire) {
            return Err(format!(
                "channel {channel} of device {device} is used twice at a time: \
                 channels must be unique in a program, and programs run one after another"
            ));
        }
        Ok(Reserved(communicator))
    }

    /// Queues a collective of a program.
    pub(crate) fn post(
        &self,
        call: String,
        post: impl FnOnce(&Library) -> Result<Handle, MpiError> + Send + 'static,
        done: impl FnOnce(Result<(), MpiError>) + Send + 'static,
    ) -> Result<(), MpiError> {
        let (post, done) = (Box::new(post), Box::new(done));
        self.speaker.post(Task { call, post, done, delay: self.delay })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Communicator>>> {
        self.communicators.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that differs for different lists.
fn digest(keys: &[Key]) -> u64 {
    let hash = Sha256::digest(format!("{keys:?}"));
    hash.iter().take(size_of::<u64>()).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

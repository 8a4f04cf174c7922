//! A bound on launches in flight.
//!
//! The CPU runtime allows 32 launches in flight per device and then blocks the launching thread.
//! With several devices these are threads of the same pool that has to finish the earlier
//! launches, so a program with collectives deadlocks. Staying below the bound avoids that, and
//! keeps a host that runs ahead from accumulating results.

use crate::event::OwnedEvent;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The launches of a client that may still be running, oldest first.
#[derive(Default)]
pub(crate) struct InFlight {
    launches: Mutex<VecDeque<Vec<OwnedEvent>>>,
}

/// Permission to launch, held by one thread at a time.
pub(crate) struct LaunchSlot<'a> {
    launches: MutexGuard<'a, VecDeque<Vec<OwnedEvent>>>,
}

impl InFlight {
    const MAX: usize = 16;

    /// Waits until there is room for one more launch.
    pub(crate) fn acquire(&self) -> LaunchSlot<'_> {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        while launches.len() >= Self::MAX {
            for device in launches.pop_front().into_iter().flatten() {
                // A failed launch is done too; reading its results reports the error.
                let _ = device.wait();
            }
        }
        LaunchSlot { launches }
    }

    /// Drops all events, before their client is destroyed.
    pub(crate) fn clear(&mut self) {
        self.launches.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl LaunchSlot<'_> {
    /// Records a launch, given the completion event of each device.
    pub(crate) fn launched(mut self, devices: Vec<OwnedEvent>) {
        self.launches.push_back(devices);
    }
}

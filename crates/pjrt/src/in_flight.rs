//! A bound on launches under way.
//!
//! The CPU runtime lets 32 launches run ahead on a device and then blocks the thread that
//! launches. With several devices these are threads of the very pool that has to finish the
//! earlier launches, so that a program with collectives never ends. Staying below the bound
//! avoids that, and keeps a host that runs ahead from piling up results.

use crate::event::OwnedEvent;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The launches of a client that may still be running, oldest first.
#[derive(Default)]
pub(crate) struct InFlight {
    launches: Mutex<VecDeque<Vec<OwnedEvent>>>,
}

/// The right to launch, which one thread has at a time.
pub(crate) struct Turn<'a> {
    launches: MutexGuard<'a, VecDeque<Vec<OwnedEvent>>>,
}

impl InFlight {
    const MOST: usize = 16;

    /// Waits until it is this thread's turn and there is room for one more launch.
    pub(crate) fn wait_turn(&self) -> Turn<'_> {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        while launches.len() >= Self::MOST {
            for device in launches.pop_front().into_iter().flatten() {
                // A failed launch is over too; whoever reads its results learns why.
                let _ = device.wait();
            }
        }
        Turn { launches }
    }

    /// Lets go of all events, before their client goes.
    pub(crate) fn forget(&mut self) {
        self.launches.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Turn<'_> {
    /// Ends the turn with a launch, given by what tells that each of its devices is done.
    pub(crate) fn launched(mut self, devices: Vec<OwnedEvent>) {
        self.launches.push_back(devices);
    }
}

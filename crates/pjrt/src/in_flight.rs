//! A bound on launches under way.
//!
//! The CPU runtime lets 32 launches run ahead on a device and then blocks the thread that
//! launches. With several devices these are threads of the very pool that has to finish the
//! earlier launches, so that a program with collectives never ends. Staying below the bound
//! avoids that, and keeps a host that runs ahead from piling up results.

use crate::event::OwnedEvent;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The launches of a client that may still be running, oldest first.
#[derive(Default)]
pub(crate) struct InFlight {
    launches: Mutex<VecDeque<Vec<OwnedEvent>>>,
}

impl InFlight {
    const MOST: usize = 16;

    /// Waits until there is room for one more launch.
    pub(crate) fn make_room(&self) {
        while let Some(oldest) = self.oldest_of_too_many() {
            for device in oldest {
                // A failed launch is over too; whoever reads its results learns why.
                let _ = device.wait();
            }
        }
    }

    /// Adds a launch, by what tells that each of its devices is done.
    pub(crate) fn add(&self, launch: Vec<OwnedEvent>) {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).push_back(launch);
    }

    /// Lets go of all events, before their client goes.
    pub(crate) fn forget(&mut self) {
        self.launches.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn oldest_of_too_many(&self) -> Option<Vec<OwnedEvent>> {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        if launches.len() < Self::MOST { None } else { launches.pop_front() }
    }
}

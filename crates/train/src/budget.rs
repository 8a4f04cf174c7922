//! A bound on host memory that threads share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A number of bytes that threads take from and give back to.
pub(crate) struct Budget {
    limit: usize,
    used: Mutex<usize>,
    freed: Condvar,
}

/// Bytes of a budget, given back when dropped.
pub(crate) struct Held<'a> {
    budget: &'a Budget,
    bytes: usize,
}

impl Budget {
    pub fn new(limit: usize) -> Budget {
        Budget { limit, used: Mutex::new(0), freed: Condvar::new() }
    }

    /// Takes bytes as soon as they fit; more than the limit only when nothing else is taken.
    pub fn take(&self, bytes: usize) -> Held<'_> {
        let full = |used: &mut usize| *used > 0 && used.saturating_add(bytes) > self.limit;
        let used = self.freed.wait_while(self.lock(), full);
        *used.unwrap_or_else(PoisonError::into_inner) += bytes;
        Held { budget: self, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.budget.lock() -= self.bytes;
        self.budget.freed.notify_all();
    }
}

//! Events: completion of device work.

use crate::client::ClientHandle;
use crate::error::Result;
use crate::plugin::Plugin;
use crate::sys::{self, args};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The completion, successful or not, of device work.
pub struct Event {
    event: OwnedEvent,
    client: Arc<ClientHandle>,
}

impl Event {
    /// Takes ownership of an event of the plugin.
    ///
    /// # Safety
    /// `raw` is null or a live event of that client that nothing else destroys.
    pub(crate) unsafe fn from_raw(client: &Arc<ClientHandle>, raw: *mut sys::Event) -> Event {
        // SAFETY: the caller promises it.
        let event = unsafe { OwnedEvent::from_raw(client.plugin, raw) };
        Event { event, client: client.clone() }
    }

    /// Blocks until it fires, and returns whether the work succeeded.
    pub fn wait(&self) -> Result<()> {
        self.event.wait()
    }

    /// Whether it has fired, successfully or not.
    pub fn is_ready(&self) -> Result<bool> {
        if self.event.raw.is_null() {
            return Ok(true);
        }
        let mut call = args::<sys::EventIsReady>();
        call.event = self.event.raw;
        // SAFETY: the event is live.
        unsafe { self.client.plugin.call(&mut call) }?;
        Ok(call.is_ready)
    }

    /// Calls `callback` when it fires: on a plugin thread, or immediately on this one.
    ///
    /// The callback should be short; a panic in it is caught, since it cannot unwind into the
    /// plugin.
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        if self.event.raw.is_null() {
            callback(Ok(()));
            return Ok(());
        }
        let state = Box::new(OnReady { client: self.client.clone(), callback: Box::new(callback) });
        let state = Box::into_raw(state);
        let mut call = args::<sys::EventOnReady>();
        call.event = self.event.raw;
        call.callback = Some(run_callback);
        call.user_arg = state.cast();
        // SAFETY: the event is live, and the callback takes the box, exactly once, on success.
        let result = unsafe { self.client.plugin.call(&mut call) };
        if result.is_err() {
            // SAFETY: a failed call does not run the callback, so the box is still ours.
            drop(unsafe { Box::from_raw(state) });
        }
        result
    }
}

/// An event of the plugin, destroyed when dropped; null means already fired. It does not keep its
/// client alive: the holder must.
pub(crate) struct OwnedEvent {
    plugin: &'static Plugin,
    raw: *mut sys::Event,
}

// SAFETY: PJRT events may be used from any thread.
unsafe impl Send for OwnedEvent {}
// SAFETY: as above.
unsafe impl Sync for OwnedEvent {}

impl OwnedEvent {
    /// Takes ownership of an event of the plugin.
    ///
    /// # Safety
    /// `raw` is null or a live event of `plugin` that nothing else destroys, and its client
    /// outlives it.
    pub(crate) unsafe fn from_raw(plugin: &'static Plugin, raw: *mut sys::Event) -> OwnedEvent {
        OwnedEvent { plugin, raw }
    }

    /// Blocks until it fires, and returns whether the work succeeded.
    pub(crate) fn wait(&self) -> Result<()> {
        if self.raw.is_null() {
            return Ok(());
        }
        let mut call = args::<sys::EventAwait>();
        call.event = self.raw;
        // SAFETY: the event is live.
        unsafe { self.plugin.call(&mut call) }
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        let mut call = args::<sys::EventDestroy>();
        call.event = self.raw;
        // SAFETY: the event is ours and is not used again. A failure is ignored.
        let _ = unsafe { self.plugin.call(&mut call) };
    }
}

struct OnReady {
    client: Arc<ClientHandle>,
    callback: Box<dyn FnOnce(Result<()>) + Send>,
}

unsafe extern "C" fn run_callback(error: *mut sys::Error, state: *mut c_void) {
    // SAFETY: `on_ready` created this box, and the plugin calls back once.
    let state = unsafe { Box::from_raw(state.cast::<OnReady>()) };
    let OnReady { client, callback } = *state;
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the plugin passes ownership of the error to the callback.
        callback(unsafe { client.plugin.take_error("PJRT_Event_OnReady", error) });
    }));
    release_elsewhere(client);
}

/// Drops the callback's client reference. The last reference must not be dropped on one of the
/// client's threads, since destroying the client waits for them.
fn release_elsewhere(client: Arc<ClientHandle>) {
    if let Some(client) = Arc::into_inner(client) {
        std::thread::spawn(move || drop(client));
    }
}

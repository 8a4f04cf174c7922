//! Events: knowing when the device is done.

use crate::client::ClientHandle;
use crate::error::Result;
use crate::plugin::Plugin;
use crate::sys::{self, args};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Something the device will have done, or failed to do.
pub struct Event {
    event: OwnedEvent,
    client: Arc<ClientHandle>,
}

impl Event {
    /// Takes ownership of an event of the plugin.
    ///
    /// # Safety
    /// `raw` is null or a live event of that client which nobody else destroys.
    pub(crate) unsafe fn from_raw(client: &Arc<ClientHandle>, raw: *mut sys::Event) -> Event {
        // SAFETY: passed on to the caller.
        let event = unsafe { OwnedEvent::from_raw(client.plugin, raw) };
        Event { event, client: client.clone() }
    }

    /// Blocks until it has happened, and says whether it went well.
    pub fn wait(&self) -> Result<()> {
        self.event.wait()
    }

    /// Whether it has happened, well or not.
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

    /// Calls `callback` once it has happened: on a thread of the plugin, or at once on this one.
    ///
    /// The callback should be short; a panic in it is swallowed, since it cannot unwind into the
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

/// An event of the plugin, destroyed when dropped; null stands for what has happened already.
/// It does not keep its client alive: whoever holds it sees to that.
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
    /// `raw` is null or a live event of `plugin` which nobody else destroys, and its client
    /// outlives it.
    pub(crate) unsafe fn from_raw(plugin: &'static Plugin, raw: *mut sys::Event) -> OwnedEvent {
        OwnedEvent { plugin, raw }
    }

    /// Blocks until it has happened, and says whether it went well.
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
        // SAFETY: the event is ours and is not used again. Nothing can be done about a failure.
        let _ = unsafe { self.plugin.call(&mut call) };
    }
}

struct OnReady {
    client: Arc<ClientHandle>,
    callback: Box<dyn FnOnce(Result<()>) + Send>,
}

unsafe extern "C" fn run_callback(error: *mut sys::Error, state: *mut c_void) {
    // SAFETY: `on_ready` made this box, and the plugin calls back once.
    let state = unsafe { Box::from_raw(state.cast::<OnReady>()) };
    let OnReady { client, callback } = *state;
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the plugin hands the error to the callback.
        callback(unsafe { client.plugin.take_error("PJRT_Event_OnReady", error) });
    }));
    release_elsewhere(client);
}

/// Drops what the callback held. The last reference to a client must not go on one of the
/// client's own threads, which destroying it would wait for.
fn release_elsewhere(client: Arc<ClientHandle>) {
    if let Some(client) = Arc::into_inner(client) {
        std::thread::spawn(move || drop(client));
    }
}

//! Pinned host memory: devices copy into it directly, several times faster than into other memory.
//! Pinning is slow, so the memory is kept for many copies.

use crate::buffer::Buffer;
use crate::client::{Client, ClientHandle};
use crate::dtype;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::sys::{self, args};
use std::ops::Range;
use std::sync::Arc;

/// Memory is pinned in parts of about this size: other calls wait while one is pinned, and a copy
/// may not reach over two.
const CHUNK: usize = 256 << 20;

/// Pinned memory with a place for each of some buffers.
pub struct PinnedMemory {
    client: Arc<ClientHandle>,
    chunks: Vec<Vec<u8>>,
    /// The chunk and the bytes in it of each buffer.
    places: Vec<(usize, Range<usize>)>,
}

impl Client {
    /// Pins memory for copies of buffers of these sizes; `None` if the plugin cannot.
    pub fn pin_memory(&self, sizes: &[usize]) -> Result<Option<PinnedMemory>> {
        let (mut lengths, mut places) = (vec![0], Vec::with_capacity(sizes.len()));
        for &size in sizes {
            let last = lengths.len() - 1;
            if lengths[last] > 0 && lengths[last] + size > CHUNK {
                lengths.push(0);
            }
            let chunk = lengths.len() - 1;
            let start = lengths[chunk];
            places.push((chunk, start..start + size));
            lengths[chunk] = (start + size).next_multiple_of(64);
        }
        let mut memory = PinnedMemory { client: self.handle.clone(), chunks: Vec::new(), places };
        for length in lengths.into_iter().filter(|&length| length > 0) {
            let mut chunk = Vec::new();
            if chunk.try_reserve_exact(length).is_err() {
                return Ok(None);
            }
            chunk.resize(length, 0);
            if !self.map(&mut chunk) {
                return Ok(None);
            }
            memory.chunks.push(chunk);
        }
        Ok(Some(memory))
    }

    /// Pins memory that stays where it is until it is unmapped.
    fn map(&self, chunk: &mut [u8]) -> bool {
        let mut call = args::<sys::ClientDmaMap>();
        call.client = self.handle.raw;
        call.data = chunk.as_mut_ptr().cast();
        call.size = chunk.len();
        // SAFETY: the client is live, and the memory is ours and unmapped before it is freed.
        unsafe { self.handle.plugin.call(&mut call) }.is_ok()
    }
}

impl PinnedMemory {
    /// The bytes of a buffer's copy, row-major.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let (chunk, range) = &self.places[index];
        &self.chunks[*chunk][range.clone()]
    }

    /// Copies buffers, each to its place.
    pub fn copy(&mut self, buffers: &[&Buffer]) -> Result<()> {
        let mut running = Vec::with_capacity(buffers.len());
        let mut failed = None;
        for (index, buffer) in buffers.iter().enumerate() {
            match self.start_copy(index, buffer) {
                Ok(event) => running.extend(event),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        for event in running {
            if let Err(error) = event.wait() {
                // The device may still write: the memory is never freed.
                std::mem::forget(std::mem::take(&mut self.chunks));
                return Err(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Starts a copy; `None` if it is already complete.
    fn start_copy(&mut self, index: usize, buffer: &Buffer) -> Result<Option<Event>> {
        let (chunk, range) = self.places.get(index).cloned().unwrap_or_default();
        let out = self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(range));
        let out = out.filter(|out| out.len() == buffer.ty().bytes());
        let Some(out) = out else {
            return Err(Error::Array(format!("no pinned memory for buffer {index}")));
        };
        let order = buffer.dim_order()?;
        if order != dtype::row_major(buffer.ty()) {
            out.copy_from_slice(buffer.to_host()?.bytes());
            return Ok(None);
        }
        let mut layout = sys::MemoryLayout::in_order(&order);
        let mut call = args::<sys::BufferToHostBuffer>();
        call.src = buffer.live_raw()?;
        call.host_layout = &raw mut layout;
        call.dst = out.as_mut_ptr().cast();
        call.dst_size = out.len();
        // SAFETY: the buffer is live, the layout outlives the call, and `copy` waits for the event
        // before the memory is used or freed.
        unsafe { self.client.plugin.call(&mut call) }?;
        // SAFETY: the call succeeded, so the event is live and ours.
        Ok(Some(unsafe { Event::from_raw(&self.client, call.event) }))
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let mut call = args::<sys::ClientDmaUnmap>();
            call.client = self.client.raw;
            call.data = chunk.as_mut_ptr().cast();
            // SAFETY: the client is live, and the memory was mapped. A failure is ignored.
            let _ = unsafe { self.client.plugin.call(&mut call) };
        }
    }
}

//! Buffers: tensors in the memory of one device, and transfers from and to the host.

use crate::client::{Client, ClientHandle};
use crate::dtype;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::host::{AlignedBytes, HostTensor};
use crate::signature::DeviceLayout;
use crate::sys::{self, Args, args};
use fullshard_core::TensorType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tensor in the memory of one device.
///
/// The device may still be writing it: all uses wait for it, and [`Buffer::ready_event`] signals
/// completion.
pub struct Buffer {
    client: Arc<ClientHandle>,
    raw: *mut sys::Buffer,
    layout: Arc<DeviceLayout>,
    device: usize,
    donated: AtomicBool,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// The placement of a buffer: a device, by its index in the client, and a memory kind.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The index of the device.
    pub device: usize,
    /// The memory kind, such as `pinned_host`; the device's default if none.
    pub memory: Option<&'a str>,
}

impl From<usize> for Place<'_> {
    fn from(device: usize) -> Self {
        Place { device, memory: None }
    }
}

impl Client {
    /// Copies a host tensor to a device; the tensor is no longer used when this returns.
    pub fn upload<'a>(&self, tensor: &HostTensor, place: impl Into<Place<'a>>) -> Result<Buffer> {
        let semantics = sys::IMMUTABLE_ONLY_DURING_CALL;
        let (ty, bytes) = (tensor.ty(), tensor.bytes());
        let (buffer, _done) = self.start_upload(ty, bytes, place.into(), semantics)?;
        Ok(buffer)
    }

    /// Copies a host tensor to a device asynchronously; the tensor is freed when the transfer is
    /// complete.
    pub fn upload_async<'a>(
        &self,
        tensor: HostTensor,
        place: impl Into<Place<'a>>,
    ) -> Result<Buffer> {
        let semantics = sys::IMMUTABLE_UNTIL_TRANSFER_COMPLETES;
        let (ty, bytes) = (tensor.ty(), tensor.bytes());
        let (buffer, done) = self.start_upload(ty, bytes, place.into(), semantics)?;
        free_after(tensor, &done)?;
        Ok(buffer)
    }

    /// Gives bytes to a device, row-major. CPU devices use them as they are, without a copy, until
    /// the buffer is freed; others copy them.
    pub fn upload_owned<'a>(
        &self,
        ty: &TensorType,
        bytes: AlignedBytes,
        place: impl Into<Place<'a>>,
    ) -> Result<Buffer> {
        dtype::check_bytes(ty, bytes.len())?;
        let semantics = match self.platform_name() {
            "cpu" => sys::MUTABLE_ZERO_COPY,
            _ => sys::IMMUTABLE_ONLY_DURING_CALL,
        };
        let (buffer, done) = self.start_upload(ty, &bytes, place.into(), semantics)?;
        free_after(bytes, &done)?;
        Ok(buffer)
    }

    /// Starts a transfer; the bytes must live as long as `semantics` requires.
    fn start_upload(
        &self,
        ty: &TensorType,
        bytes: &[u8],
        place: Place<'_>,
        semantics: i32,
    ) -> Result<(Buffer, Event)> {
        let device = self.device(place.device)?;
        // A type whose bytes fit into memory has no dimension that is too large for this.
        let dims: Vec<i64> = ty.dims.iter().map(|&dim| dim as i64).collect();
        let mut call = args::<sys::ClientBufferFromHostBuffer>();
        call.client = self.handle.raw;
        call.data = bytes.as_ptr().cast();
        call.element_type = dtype::raw(ty.dtype);
        call.dims = dims.as_ptr();
        call.num_dims = dims.len();
        call.host_buffer_semantics = semantics;
        match place.memory {
            Some(kind) => call.memory = device.memory(kind)?,
            None => call.device = device.raw,
        }
        // SAFETY: client, device and memory are live, the dimensions outlive the call, and callers
        // pass exactly the bytes of the type.
        unsafe { self.handle.plugin.call(&mut call) }?;
        // SAFETY: the call succeeded, so the event is ours.
        let done = unsafe { Event::from_raw(&self.handle, call.done_with_host_buffer) };
        let name = sys::ClientBufferFromHostBuffer::NAME;
        let raw = self.handle.plugin.check_made(call.buffer, name)?;
        // TPUs choose an order by the shape; other platforms keep that of the host.
        let order = (self.platform_name() != "tpu").then(|| dtype::row_major(ty));
        let layout = Arc::new(DeviceLayout { ty: ty.clone(), order });
        // SAFETY: the call succeeded, so the buffer is live and ours.
        Ok((unsafe { Buffer::from_raw(&self.handle, raw, layout, place.device) }, done))
    }
}

/// Frees memory when the plugin is done with it.
fn free_after<T: Send + Sync + 'static>(memory: T, done: &Event) -> Result<()> {
    let memory = Arc::new(memory);
    let held = memory.clone();
    if let Err(error) = done.on_ready(move |_| drop(held)) {
        // The plugin may still use it: it may only be freed when it is done.
        if done.wait().is_err() {
            std::mem::forget(memory);
        }
        return Err(error);
    }
    Ok(())
}

impl Buffer {
    /// Takes ownership of a buffer of the plugin.
    ///
    /// # Safety
    /// `raw` is a live buffer of that client and type on that device, that nothing else destroys.
    pub(crate) unsafe fn from_raw(
        client: &Arc<ClientHandle>,
        raw: *mut sys::Buffer,
        layout: Arc<DeviceLayout>,
        device: usize,
    ) -> Buffer {
        Buffer { client: client.clone(), raw, layout, device, donated: AtomicBool::new(false) }
    }

    /// The element type and dimensions.
    pub fn ty(&self) -> &TensorType {
        &self.layout.ty
    }

    /// The type with its dimension order on the device.
    pub(crate) fn layout(&self) -> &DeviceLayout {
        &self.layout
    }

    /// The index of its device in the client.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Whether it was donated to a launch, so that it no longer holds data.
    pub fn is_donated(&self) -> bool {
        self.donated.load(Ordering::Relaxed)
    }

    /// Its size on the device in bytes, padding included.
    pub fn device_bytes(&self) -> Result<usize> {
        let mut call = args::<sys::BufferOnDeviceSize>();
        call.buffer = self.live_raw()?;
        // SAFETY: the buffer is live.
        unsafe { self.client.plugin.call(&mut call) }?;
        Ok(call.bytes)
    }

    /// An event that fires when the device has written the buffer.
    pub fn ready_event(&self) -> Result<Event> {
        let mut call = args::<sys::BufferReadyEvent>();
        call.buffer = self.live_raw()?;
        // SAFETY: the buffer is live.
        unsafe { self.client.plugin.call(&mut call) }?;
        // SAFETY: the call succeeded, so the event is live and ours.
        Ok(unsafe { Event::from_raw(&self.client, call.event) })
    }

    /// Starts copying to the host.
    pub fn download(&self) -> Result<Download> {
        let mut bytes = vec![0_u8; self.ty().bytes()];
        let order = self.dim_order()?;
        let mut layout = sys::MemoryLayout::in_order(&order);
        let mut call = args::<sys::BufferToHostBuffer>();
        call.src = self.live_raw()?;
        // The device's order, since not every plugin permutes to another one.
        call.host_layout = &raw mut layout;
        call.dst = bytes.as_mut_ptr().cast();
        call.dst_size = bytes.len();
        // SAFETY: the buffer is live, the layout outlives the call, and `Download` keeps the
        // bytes in place until the event has fired.
        unsafe { self.client.plugin.call(&mut call) }?;
        // SAFETY: the call succeeded, so the event is live and ours.
        let done = unsafe { Event::from_raw(&self.client, call.event) };
        Ok(Download { layout: self.layout.clone(), order, bytes, done })
    }

    /// The dimension order on the device, minor to major.
    pub(crate) fn dim_order(&self) -> Result<Vec<i64>> {
        let row_major = dtype::row_major(self.ty());
        if let Some(order) = &self.layout.order {
            return Ok(order.clone());
        }
        let mut call = args::<sys::BufferGetMemoryLayout>();
        call.buffer = self.live_raw()?;
        // SAFETY: the buffer is live, and so is the layout it returns.
        let order = unsafe {
            match self.client.plugin.call(&mut call) {
                Ok(()) => call.layout.minor_to_major().map(<[i64]>::to_vec),
                // A plugin that does not report it keeps the host order.
                Err(_) => None,
            }
        };
        let is_order = |order: &Vec<i64>| {
            order.len() == row_major.len() && row_major.iter().all(|dim| order.contains(dim))
        };
        Ok(order.filter(is_order).unwrap_or(row_major))
    }

    /// Copies to the host.
    pub fn to_host(&self) -> Result<HostTensor> {
        self.download()?.wait()
    }

    /// Copies to another device of the same client.
    pub fn copy_to(&self, device: usize) -> Result<Buffer> {
        let client = Client { handle: self.client.clone() };
        let mut call = args::<sys::BufferCopyToDevice>();
        call.buffer = self.live_raw()?;
        call.dst_device = client.device(device)?.raw;
        // SAFETY: buffer and device are live.
        unsafe { self.client.plugin.call(&mut call) }?;
        let raw = self.client.plugin.check_made(call.dst_buffer, sys::BufferCopyToDevice::NAME)?;
        // SAFETY: the call succeeded, so the buffer is live and ours.
        Ok(unsafe { Buffer::from_raw(&self.client, raw, self.layout.clone(), device) })
    }

    /// The plugin's handle, if the buffer still holds data.
    pub(crate) fn live_raw(&self) -> Result<*mut sys::Buffer> {
        if self.is_donated() {
            let what = format!("the buffer {} on device {}", self.ty(), self.device);
            return Err(Error::Donated { what });
        }
        Ok(self.raw)
    }

    /// Its client.
    pub(crate) fn client(&self) -> &ClientHandle {
        &self.client
    }

    /// Whether the buffer belongs to that client.
    pub(crate) fn is_of(&self, client: &Arc<ClientHandle>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    /// Updates whether a launch has consumed the buffer, as the plugin reports it.
    pub(crate) fn note_donation(&self) {
        let mut call = args::<sys::BufferIsDeleted>();
        call.buffer = self.raw;
        // SAFETY: the handle is live even when its contents are gone.
        if unsafe { self.client.plugin.call(&mut call) }.is_ok() && call.is_deleted {
            self.donated.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut call = args::<sys::BufferDestroy>();
        call.buffer = self.raw;
        // SAFETY: the buffer is ours and is not used again. A failure is ignored.
        let _ = unsafe { self.client.plugin.call(&mut call) };
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let donated = if self.is_donated() { ", donated" } else { "" };
        write!(f, "Buffer({} on device {}{donated})", self.ty(), self.device)
    }
}

/// A running copy to the host.
pub struct Download {
    layout: Arc<DeviceLayout>,
    order: Vec<i64>,
    bytes: Vec<u8>,
    done: Event,
}

impl Download {
    /// Whether the copy is done.
    pub fn is_ready(&self) -> Result<bool> {
        self.done.is_ready()
    }

    /// Waits for the copy.
    pub fn wait(mut self) -> Result<HostTensor> {
        self.done.wait()?;
        let ty = &self.layout.ty;
        let bytes = to_row_major(std::mem::take(&mut self.bytes), ty, &self.order);
        HostTensor::new(ty.clone(), bytes)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The device writes into `bytes` until then. After an error it may still do so.
        if self.done.wait().is_err() {
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// Transposes bytes in another dimension order to row-major order.
fn to_row_major(bytes: Vec<u8>, ty: &TensorType, minor_to_major: &[i64]) -> Vec<u8> {
    let rank = ty.dims.len();
    if minor_to_major.iter().rev().map(|&dim| dim as usize).eq(0..rank) || bytes.is_empty() {
        return bytes;
    }
    let width = ty.dtype.size();
    let mut strides = vec![0; rank];
    let mut stride = width;
    for &dim in minor_to_major {
        strides[dim as usize] = stride;
        stride *= ty.dims[dim as usize];
    }
    let mut ordered = Vec::with_capacity(bytes.len());
    let mut index = vec![0; rank];
    while ordered.len() < bytes.len() {
        let offset: usize = index.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
        ordered.extend_from_slice(&bytes[offset..offset + width]);
        for dim in (0..rank).rev() {
            index[dim] += 1;
            if index[dim] < ty.dims[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
    ordered
}

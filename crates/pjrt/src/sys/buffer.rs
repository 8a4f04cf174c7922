//! Buffers and the transfers between host and device.

use super::{Buffer, Client, Device, Event, ExtensionBase, Memory, call_args};
use std::ffi::{c_int, c_void};

call_args! {
    ClientBufferFromHostBuffer = 22, "PJRT_Client_BufferFromHostBuffer" {
        client: *mut Client,
        data: *const c_void,
        element_type: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_int,
        device: *mut Device,
        memory: *mut Memory,
        device_layout: *mut MemoryLayout,
        done_with_host_buffer: *mut Event,
        buffer: *mut Buffer,
    }
    BufferDestroy = 58, "PJRT_Buffer_Destroy" { buffer: *mut Buffer }
    BufferGetMemoryLayout = 63, "PJRT_Buffer_GetMemoryLayout" {
        buffer: *mut Buffer,
        layout: MemoryLayout,
    }
    BufferOnDeviceSize = 64, "PJRT_Buffer_OnDeviceSizeInBytes" {
        buffer: *mut Buffer,
        bytes: usize,
    }
    BufferIsDeleted = 68, "PJRT_Buffer_IsDeleted" { buffer: *mut Buffer, is_deleted: bool }
    BufferCopyToDevice = 69, "PJRT_Buffer_CopyToDevice" {
        buffer: *mut Buffer,
        dst_device: *mut Device,
        dst_buffer: *mut Buffer,
    }
    BufferToHostBuffer = 70, "PJRT_Buffer_ToHostBuffer" {
        src: *mut Buffer,
        host_layout: *mut MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut Event,
    }
    BufferReadyEvent = 72, "PJRT_Buffer_ReadyEvent" { buffer: *mut Buffer, event: *mut Event }
}

/// The plugin copies the host bytes before the call returns.
pub(crate) const IMMUTABLE_ONLY_DURING_CALL: c_int = 0;
/// The host bytes must live until `done_with_host_buffer` fires.
pub(crate) const IMMUTABLE_UNTIL_TRANSFER_COMPLETES: c_int = 1;
/// The bytes belong to the buffer, which may use and change them until it is freed.
pub(crate) const MUTABLE_ZERO_COPY: c_int = 3;

/// A dimension order (tiled, with no tiles): all we set of host layouts and read of device ones.
///
/// In C this is a union of a tiled and a strided form; the tiled form is the larger of the two, so
/// its fields represent the union.
#[repr(C)]
pub(crate) struct MemoryLayout {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    tiled_struct_size: usize,
    tiled_extension_start: *mut ExtensionBase,
    minor_to_major: *const i64,
    minor_to_major_size: usize,
    tile_dims: *const i64,
    tile_dim_sizes: *const usize,
    num_tiles: usize,
    kind: c_int,
}

impl MemoryLayout {
    /// A layout in the given dimension order. It borrows `minor_to_major` by pointer: the slice
    /// must outlive every use of the layout.
    pub(crate) fn in_order(minor_to_major: &[i64]) -> MemoryLayout {
        MemoryLayout {
            struct_size: size_of::<MemoryLayout>(),
            extension_start: std::ptr::null_mut(),
            tiled_struct_size: std::mem::offset_of!(MemoryLayout, kind)
                - std::mem::offset_of!(MemoryLayout, tiled_struct_size),
            tiled_extension_start: std::ptr::null_mut(),
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            tile_dims: std::ptr::null(),
            tile_dim_sizes: std::ptr::null(),
            num_tiles: 0,
            kind: Self::TILED,
        }
    }

    const TILED: c_int = 0;

    /// The dimension order, minor to major, if the layout has one.
    ///
    /// # Safety
    /// A plugin filled the layout, and its buffer is live.
    pub(crate) unsafe fn minor_to_major(&self) -> Option<&[i64]> {
        // SAFETY: the caller promises a filled, live layout, and `kind` selects its form.
        (self.kind == Self::TILED)
            .then(|| unsafe { crate::value::slice(self.minor_to_major, self.minor_to_major_size) })
    }
}

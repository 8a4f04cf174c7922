//! Launches: argument checks and execution.

use crate::buffer::Buffer;
use crate::client::ClientHandle;
use crate::error::{Error, Result};
use crate::event::OwnedEvent;
use crate::loaded::LoadedExecutable;
use crate::sys::{self, Args, args};
use std::fs;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

impl LoadedExecutable {
    /// Runs the program: `arguments[d][a]` is argument `a` on the `d`th of its devices, and
    /// results are indexed the same way. Execution is asynchronous.
    ///
    /// Donated arguments hold no data afterwards.
    pub fn execute<'a, List: AsRef<[&'a Buffer]>>(
        &self,
        arguments: &[List],
    ) -> Result<Vec<Vec<Buffer>>> {
        self.execute_keeping(arguments, &[])
    }

    /// Runs the program like [`LoadedExecutable::execute`], but does not donate the arguments at
    /// `kept`.
    pub fn execute_keeping<'a, List: AsRef<[&'a Buffer]>>(
        &self,
        arguments: &[List],
        kept: &[usize],
    ) -> Result<Vec<Vec<Buffer>>> {
        let arguments: Vec<&[&Buffer]> = arguments.iter().map(AsRef::as_ref).collect();
        self.check_kept(kept)?;
        self.check_memory()?;
        let inputs = self.check_arguments(&arguments, kept)?;
        let outputs = self.launch(&inputs, kept);
        self.note_donations(&arguments);
        outputs?.into_iter().enumerate().map(|(d, raw)| self.take_outputs(d, raw)).collect()
    }

    /// Launches with checked arguments, and returns the raw results per device.
    fn launch(
        &self,
        inputs: &[Vec<*mut sys::Buffer>],
        kept: &[usize],
    ) -> Result<Vec<Vec<*mut sys::Buffer>>> {
        let input_lists: Vec<_> = inputs.iter().map(|list| list.as_ptr()).collect();
        let empty = vec![ptr::null_mut::<sys::Buffer>(); self.results.len()];
        let mut outputs = vec![empty; inputs.len()];
        let output_lists: Vec<_> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let kept: Vec<i64> = kept.iter().map(|&index| index as i64).collect();
        let mut options = sys::ExecuteOptions::new();
        options.launch_id = self.handle.client.next_launch_id();
        options.non_donatable_input_indices = kept.as_ptr();
        options.num_non_donatable_input_indices = kept.len();
        let mut call = args::<sys::LoadedExecutableExecute>();
        call.executable = self.handle.raw;
        call.options = &raw mut options;
        call.argument_lists = input_lists.as_ptr();
        call.num_devices = inputs.len();
        call.num_args = self.parameters.len();
        call.output_lists = output_lists.as_ptr();

        let client = &self.handle.client;
        if !client.is_cpu() {
            // SAFETY: executable and arguments are live and match the program (checked before),
            // and every list has the length the program needs (checked when it was loaded).
            unsafe { client.plugin.call(&mut call) }?;
            return Ok(outputs);
        }
        let slot = client.in_flight.acquire();
        let mut done: Vec<*mut sys::Event> = vec![ptr::null_mut(); inputs.len()];
        call.device_complete_events = done.as_mut_ptr();
        // SAFETY: as above, and there is room for an event per device.
        unsafe { client.plugin.call(&mut call) }?;
        // SAFETY: the launch succeeded, so we own these events, and the client that holds them
        // drops them before it is destroyed.
        let own = |raw| unsafe { OwnedEvent::from_raw(client.plugin, raw) };
        slot.launched(done.into_iter().map(own).collect());
        Ok(outputs)
    }

    fn take_outputs(&self, device: usize, outputs: Vec<*mut sys::Buffer>) -> Result<Vec<Buffer>> {
        let client = &self.handle.client;
        let device = self.devices()[device];
        let take = |(raw, layout): (*mut sys::Buffer, &_)| {
            let raw = client.plugin.check_made(raw, sys::LoadedExecutableExecute::NAME)?;
            // SAFETY: the launch succeeded, so this is a live buffer of ours.
            Ok(unsafe { Buffer::from_raw(client, raw, std::sync::Arc::clone(layout), device) })
        };
        outputs.into_iter().zip(&self.results).map(take).collect()
    }

    fn check_kept(&self, kept: &[usize]) -> Result<()> {
        let count = self.parameters.len();
        match kept.iter().find(|&&argument| argument >= count) {
            Some(&argument) => {
                Err(Error::NoSuchArgument { program: self.name().to_owned(), argument, count })
            }
            None => Ok(()),
        }
    }

    /// Checks every argument against the program. Plugins check at most the size.
    fn check_arguments(
        &self,
        arguments: &[&[&Buffer]],
        kept: &[usize],
    ) -> Result<Vec<Vec<*mut sys::Buffer>>> {
        if arguments.len() != self.devices().len() {
            let (expected, found) = (self.devices().len(), arguments.len());
            return Err(Error::DeviceCount { program: self.name().to_owned(), expected, found });
        }
        let check_device = |(device, list): (usize, &&[&Buffer])| {
            let (expected, found) = (self.parameters.len(), list.len());
            if expected != found {
                let program = self.name().to_owned();
                return Err(Error::ArgumentCount { program, device, expected, found });
            }
            let checked = list.iter().enumerate().map(|(i, b)| self.check_argument(device, i, b));
            let checked = checked.collect::<Result<Vec<_>>>()?;
            self.check_donated_once(&checked, kept)?;
            Ok(checked)
        };
        arguments.iter().enumerate().map(check_device).collect()
    }

    fn check_argument(
        &self,
        device: usize,
        argument: usize,
        buffer: &Buffer,
    ) -> Result<*mut sys::Buffer> {
        let program = || self.name().to_owned();
        if !buffer.is_of(&self.handle.client) {
            return Err(Error::ForeignBuffer { program: program(), argument });
        }
        let parameter = &self.parameters[argument];
        if *buffer.ty() != parameter.ty {
            let (expected, found) = (parameter.ty.to_string(), buffer.ty().to_string());
            let program = program();
            return Err(Error::ArgumentShape { program, argument, device, expected, found });
        }
        if let Some((expected, found)) = parameter.order_conflict(buffer.layout()) {
            let (expected, found) = (expected.to_vec(), found.to_vec());
            return Err(Error::ArgumentLayout { program: program(), argument, expected, found });
        }
        let (expected, found) = (self.devices()[device], buffer.device());
        if expected != found {
            return Err(Error::ArgumentDevice { program: program(), argument, expected, found });
        }
        buffer.live_raw().map_err(|_| Error::Donated {
            what: format!("argument {argument} of `{}` (device {device})", self.name()),
        })
    }

    /// Rejects a buffer that is donated as one argument and read as another.
    fn check_donated_once(&self, list: &[*mut sys::Buffer], kept: &[usize]) -> Result<()> {
        let donated = &self.signature().donated;
        if donated.is_empty() {
            return Ok(());
        }
        let mut sorted: Vec<(*mut sys::Buffer, usize)> = list.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        for pair in sorted.windows(2) {
            let [(buffer, first), (other, second)] = [pair[0], pair[1]];
            let taken = |index: &usize| donated.contains(index) && !kept.contains(index);
            if buffer == other && (taken(&first) || taken(&second)) {
                let program = self.name().to_owned();
                let (argument, also) =
                    if taken(&first) { (first, second) } else { (second, first) };
                return Err(Error::DonatedTwice { program, argument, also });
            }
        }
        Ok(())
    }

    fn note_donations(&self, arguments: &[&[&Buffer]]) {
        for list in arguments {
            for &donated in &self.signature().donated {
                list[donated].note_donation();
            }
        }
    }

    /// Rejects programs that do not fit in host memory: virtual devices share it, and the OOM
    /// killer would end the process.
    fn check_memory(&self) -> Result<()> {
        if !self.handle.client.is_cpu() {
            return Ok(());
        }
        let per_device = self.memory.outputs.saturating_sub(self.memory.aliased);
        let per_device = per_device.saturating_add(self.memory.temporaries);
        let needed = per_device.saturating_mul(self.devices().len() as u64);
        match *HOST_MEMORY {
            Some(available) if needed > available => {
                Err(Error::TooLarge { program: self.name().to_owned(), needed, available })
            }
            _ => Ok(()),
        }
    }
}

impl ClientHandle {
    /// A nonzero id, unique per launch, so that hosts that launch in different orders are detected.
    /// Each client counts its own: the processes of a job launch the same sequence, so that their
    /// ids agree.
    fn next_launch_id(&self) -> i32 {
        (self.launches.fetch_add(1, Ordering::Relaxed) & i32::MAX).max(1)
    }
}

/// Host memory available to this process in bytes: the machine's, or its container's.
static HOST_MEMORY: LazyLock<Option<u64>> = LazyLock::new(|| {
    let container = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse::<u64>().ok());
    [machine_memory(), container].into_iter().flatten().min()
});

fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

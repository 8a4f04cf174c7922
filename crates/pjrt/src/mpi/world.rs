//! The processes of a job, as MPI sees them.

use super::MpiError;
use super::collectives::Collectives;
use super::library::{Handle, Library};
use super::speaker::Speaker;
use crate::Result;
use std::ffi::c_void;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The processes that were started together. There is one per process, which lives as long as it.
pub struct World {
    library: &'static Library,
    rank: usize,
    size: usize,
    speaker: &'static Speaker,
    collectives: Collectives,
}

static WORLD: Mutex<Option<&'static World>> = Mutex::new(None);

impl World {
    /// Starts MPI in this process, once: a job of `expected` processes. The library is the one
    /// named by `FULLSHARD_MPI_LIBRARY`, else the installed one, else the system's.
    ///
    /// After an error the process cannot start MPI again, and has to end.
    pub fn start(expected: usize) -> Result<&'static World> {
        let mut known = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
        let world = match *known {
            Some(world) => world,
            None => Box::leak(Box::new(World::new()?)),
        };
        *known = Some(world);
        match world.size {
            size if size == expected => Ok(world),
            1 => Err(MpiError::Alone {
                expected,
                library: world.library.path.clone(),
                mpiexec: world.library.mpiexec(),
            }
            .into()),
            found => Err(MpiError::Size { expected, found }.into()),
        }
    }

    /// The world of this process, if MPI was started.
    pub fn current() -> Option<&'static World> {
        *WORLD.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new() -> Result<World> {
        let library: &'static Library = Box::leak(Box::new(Library::open()?));
        let speaker: &'static Speaker = Box::leak(Box::new(Speaker::start(library)?));
        let (rank, size) = speaker.run(|library, _| library.start())?;
        tracing::debug!("process {rank} of {size}: {}", library.version);
        let collectives = Collectives::new(speaker, rank, size);
        Ok(World { library, rank, size, speaker, collectives })
    }

    /// The number of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The name and version that the MPI library reports.
    pub fn library_version(&self) -> &str {
        &self.library.version
    }

    /// The file of the MPI library.
    pub fn library_path(&self) -> &Path {
        &self.library.path
    }

    /// The collectives of programs.
    pub fn collectives(&self) -> &Collectives {
        &self.collectives
    }

    /// Waits until all processes are here.
    pub fn barrier(&self) -> Result<()> {
        let _turn = self.speaker.turn();
        const CALL: &str = "MPI_Ibarrier";
        Ok(self.speaker.wait(CALL, |library| {
            let mut request = Handle::REQUEST_NULL;
            // SAFETY: MPI is started.
            let code = unsafe { (library.functions.ibarrier)(Handle::WORLD, &raw mut request) };
            library.check_code(code, || CALL.to_owned())?;
            Ok(request)
        })?)
    }

    /// The bytes of process 0, on all processes. The others may pass nothing.
    pub fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let _turn = self.speaker.turn();
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.broadcast_in_place(&mut length)?;
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        let mut bytes = bytes;
        bytes.resize(length, 0);
        self.broadcast_in_place(&mut bytes)?;
        Ok(bytes)
    }

    fn broadcast_in_place(&self, bytes: &mut [u8]) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Ibcast";
        let (data, length) = (bytes.as_mut_ptr() as usize, bytes.len() as i64);
        self.speaker.wait(CALL, move |library| {
            let mut request = Handle::REQUEST_NULL;
            let data = data as *mut c_void;
            // SAFETY: MPI is started, and the bytes are borrowed until the request is done.
            let code = unsafe {
                let world = Handle::WORLD;
                (library.functions.ibcast)(data, length, Handle::BYTE, 0, world, &raw mut request)
            };
            library.check_code(code, || CALL.to_owned())?;
            Ok(request)
        })
    }

    /// Ends MPI, when all processes do. Only for a clean end: after an error, leave the process,
    /// and `mpiexec` ends the others.
    pub fn finish(&self) -> Result<()> {
        let _turn = self.speaker.turn();
        let speaker = self.speaker;
        speaker.run(|library, in_flight| {
            if in_flight > 0 {
                return Err(MpiError::InFlight { count: in_flight });
            }
            // SAFETY: MPI is started, and no request is under way.
            let code = unsafe { (library.functions.finalize)() };
            speaker.end();
            library.check_code(code, || "MPI_Finalize".to_owned())
        })?;
        Ok(())
    }
}

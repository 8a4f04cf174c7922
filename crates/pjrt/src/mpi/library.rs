//! The MPI library, opened at run time by the standard ABI of MPI 5.
//!
//! The ABI fixes the types of all functions and the values of all constants, so that one binary
//! works with every library that has it. Handles are pointers, predefined ones small numbers.

use super::MpiError;
use super::operations::{FloatOperations, Operation, UserFunction};
use crate::plugins::{Kind, Store, find};
use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

/// The file name of a library with the standard ABI.
const NAME: &str = "libmpi_abi.so.1";

/// The first version with functions for large counts.
const OLDEST: c_int = 4;

const MAX_ERROR_STRING: usize = 512;
const MAX_LIBRARY_VERSION_STRING: usize = 8192;
const THREAD_MULTIPLE: c_int = 4096;

/// A handle of MPI: a communicator, request, datatype or operation.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: handles are names of objects in the library, which synchronizes access to them.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    const fn new(value: usize) -> Handle {
        Handle(ptr::without_provenance_mut(value))
    }

    pub(super) const WORLD: Handle = Handle::new(0x101);
    const SELF: Handle = Handle::new(0x102);
    pub(crate) const REQUEST_NULL: Handle = Handle::new(0x180);
    pub(super) const ERRORS_RETURN: Handle = Handle::new(0x143);

    pub(super) const SUM: Handle = Handle::new(0x21);
    pub(super) const MIN: Handle = Handle::new(0x22);
    pub(super) const MAX: Handle = Handle::new(0x23);

    pub(crate) const FLOAT: Handle = Handle::new(0x210);
    pub(crate) const DOUBLE: Handle = Handle::new(0x214);
    pub(crate) const INT8: Handle = Handle::new(0x240);
    pub(crate) const UINT8: Handle = Handle::new(0x241);
    pub(crate) const BYTE: Handle = Handle::new(0x247);
    pub(crate) const INT16: Handle = Handle::new(0x248);
    pub(crate) const UINT16: Handle = Handle::new(0x249);
    pub(crate) const INT32: Handle = Handle::new(0x250);
    pub(crate) const UINT32: Handle = Handle::new(0x251);
    pub(crate) const INT64: Handle = Handle::new(0x258);
    pub(crate) const UINT64: Handle = Handle::new(0x259);
}

/// The operand of a collective that reduces in place.
pub(crate) const IN_PLACE: *const c_void = ptr::without_provenance(1);
/// The process that nothing is sent to or received from.
pub(crate) const PROC_NULL: c_int = -3;
/// The color of processes that get no communicator.
pub(super) const UNDEFINED: c_int = -32766;

/// Declares the functions that we call: `field: "C name" (argument types)`.
macro_rules! functions {
    ($($field:ident: $name:literal ($($ty:ty),*);)*) => {
        /// Functions of the library. All return an error code.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($ty),*) -> c_int,)*
        }

        impl Functions {
            fn find(library: &Loaded) -> Result<Functions, &'static str> {
                // SAFETY: the ABI fixes the types of these symbols.
                unsafe {
                    Ok(Functions {
                        $($field: *library
                            .get(concat!($name, "\0").as_bytes())
                            .map_err(|_| $name)?,)*
                    })
                }
            }
        }
    };
}

functions! {
    abi_version: "MPI_Abi_get_version" (*mut c_int, *mut c_int);
    version: "MPI_Get_version" (*mut c_int, *mut c_int);
    library_version: "MPI_Get_library_version" (*mut c_char, *mut c_int);
    error_string: "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    init_thread: "MPI_Init_thread" (*mut c_int, *mut c_void, c_int, *mut c_int);
    finalize: "MPI_Finalize" ();
    op_create: "MPI_Op_create_c" (UserFunction, c_int, *mut Handle);
    comm_rank: "MPI_Comm_rank" (Handle, *mut c_int);
    comm_size: "MPI_Comm_size" (Handle, *mut c_int);
    comm_split: "MPI_Comm_split" (Handle, c_int, c_int, *mut Handle);
    comm_set_errhandler: "MPI_Comm_set_errhandler" (Handle, Handle);
    test: "MPI_Test" (*mut Handle, *mut c_int, *mut c_void);
    ibarrier: "MPI_Ibarrier" (Handle, *mut Handle);
    ibcast: "MPI_Ibcast_c" (*mut c_void, i64, Handle, c_int, Handle, *mut Handle);
    iallreduce: "MPI_Iallreduce_c"
        (*const c_void, *mut c_void, i64, Handle, Handle, Handle, *mut Handle);
    iallgather: "MPI_Iallgather_c"
        (*const c_void, i64, Handle, *mut c_void, i64, Handle, Handle, *mut Handle);
    ireduce_scatter: "MPI_Ireduce_scatter_block_c"
        (*const c_void, *mut c_void, i64, Handle, Handle, Handle, *mut Handle);
    ialltoall: "MPI_Ialltoall_c"
        (*const c_void, i64, Handle, *mut c_void, i64, Handle, Handle, *mut Handle);
    isendrecv: "MPI_Isendrecv_c"
        (*const c_void, i64, Handle, c_int, c_int,
         *mut c_void, i64, Handle, c_int, c_int, Handle, *mut Handle);
}

/// A function that reduces.
pub(crate) type ReduceFunction = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    i64,
    Handle,
    Handle,
    Handle,
    *mut Handle,
) -> c_int;

/// A function that moves blocks.
pub(crate) type MoveFunction = unsafe extern "C" fn(
    *const c_void,
    i64,
    Handle,
    *mut c_void,
    i64,
    Handle,
    Handle,
    *mut Handle,
) -> c_int;

/// A loaded MPI library, never unloaded.
pub(crate) struct Library {
    /// The file, or its name if the system's loader found it.
    pub(super) path: PathBuf,
    /// The name and version that it reports, on one line.
    pub(super) version: String,
    pub(crate) functions: Functions,
    /// There after the start.
    operations: OnceLock<FloatOperations>,
}

impl Library {
    /// Opens the library named by `FULLSHARD_MPI_LIBRARY`, else the installed one, else the one
    /// that the system's loader finds.
    pub(super) fn open() -> crate::Result<Library> {
        let located = find(Kind::Mpi, None, &Store::default_location()?)?;
        if let Some(located) = &located {
            located.verify()?;
        }
        Ok(Library::load(located.as_ref().map(|located| located.path.as_path()))?)
    }

    fn load(path: Option<&Path>) -> Result<Library, MpiError> {
        let file = path.unwrap_or(Path::new(NAME)).to_owned();
        // SAFETY: loading runs the library's initializers, as the user requested. Its parts find
        // one another by global symbols.
        let loaded = unsafe { Loaded::open(Some(&file), RTLD_NOW | RTLD_GLOBAL) };
        let loaded = loaded.map_err(|error| match path {
            Some(_) => MpiError::NotALibrary { path: file.clone(), reason: error.to_string() },
            None => MpiError::NoLibrary { reason: error.to_string() },
        })?;
        let loaded = ManuallyDrop::new(loaded);
        let functions = Functions::find(&loaded).map_err(|name| MpiError::NotStandard {
            path: file.clone(),
            reason: format!("it has no function {name}"),
        })?;
        let mut library =
            Library { path: file, version: String::new(), functions, operations: OnceLock::new() };
        library.check()?;
        library.version = library.read_version();
        Ok(library)
    }

    /// Rejects libraries whose handles and constants are not those of the ABI.
    fn check(&self) -> Result<(), MpiError> {
        let (mut abi, mut version, mut minor) = (0, 0, 0);
        // SAFETY: these may be called before MPI is started, and write two integers.
        unsafe {
            (self.functions.abi_version)(&raw mut abi, &raw mut minor);
            (self.functions.version)(&raw mut version, &raw mut minor);
        }
        let reason = match (abi, version) {
            (..1, _) => "it reports that it lacks it".to_owned(),
            (1, OLDEST..) => return Ok(()),
            (1, _) => format!("it has MPI {version}, older than {OLDEST}"),
            _ => format!("it has version {abi} of the ABI, and 1 is supported"),
        };
        Err(MpiError::NotStandard { path: self.path.clone(), reason })
    }

    fn read_version(&self) -> String {
        let mut text = [0; MAX_LIBRARY_VERSION_STRING];
        let mut length = 0;
        // SAFETY: may be called before MPI is started; the text has the length that the ABI states.
        unsafe { (self.functions.library_version)(text.as_mut_ptr(), &raw mut length) };
        let text = read_text(&text);
        text.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Starts MPI, and reports the rank of this process and the number of processes.
    pub(super) fn start(&self) -> Result<(usize, usize), MpiError> {
        let functions = &self.functions;
        let (mut provided, mut rank, mut size) = (0, 0, 0);
        // SAFETY: MPI may be started without arguments, and is started once.
        let code = unsafe {
            let null = ptr::null_mut();
            (functions.init_thread)(null, null.cast(), THREAD_MULTIPLE, &raw mut provided)
        };
        self.check_code(code, || "MPI_Init_thread".to_owned())?;
        if provided < THREAD_MULTIPLE {
            return Err(MpiError::Threads { library: self.version.clone() });
        }
        self.return_errors(Handle::WORLD)?;
        // Errors that are of no communicator count as its.
        self.return_errors(Handle::SELF)?;
        let operations = FloatOperations::new(self)?;
        let _ = self.operations.set(operations);
        // SAFETY: MPI is started, and the functions write one integer each.
        unsafe {
            let code = (functions.comm_rank)(Handle::WORLD, &raw mut rank);
            self.check_code(code, || "MPI_Comm_rank".to_owned())?;
            let code = (functions.comm_size)(Handle::WORLD, &raw mut size);
            self.check_code(code, || "MPI_Comm_size".to_owned())?;
        }
        Ok((rank.unsigned_abs() as usize, size.unsigned_abs() as usize))
    }

    /// The operation of a reduction of a datatype.
    pub(crate) fn operation(&self, operation: Operation, ty: Handle) -> Handle {
        // Before the start nothing is reduced.
        self.operations.get().map_or(Handle::SUM, |operations| operations.get(operation, ty))
    }

    /// Makes calls on a communicator return errors; by default they end the process.
    pub(super) fn return_errors(&self, communicator: Handle) -> Result<(), MpiError> {
        // SAFETY: MPI is started, and the communicator is live.
        let code =
            unsafe { (self.functions.comm_set_errhandler)(communicator, Handle::ERRORS_RETURN) };
        self.check_code(code, || "MPI_Comm_set_errhandler".to_owned())
    }

    /// Whether a request is done. A request that is done or failed no longer exists.
    pub(super) fn test(
        &self,
        request: &mut Handle,
        call: impl FnOnce() -> String,
    ) -> Result<bool, MpiError> {
        let mut done = 0;
        // SAFETY: the request is live or null, and no status is written.
        let code = unsafe { (self.functions.test)(request, &raw mut done, ptr::null_mut()) };
        self.check_code(code, call)?;
        Ok(done != 0)
    }

    /// Converts an error code; `call` names the function and what it was called for.
    pub(crate) fn check_code(
        &self,
        code: c_int,
        call: impl FnOnce() -> String,
    ) -> Result<(), MpiError> {
        match code {
            0 => Ok(()),
            _ => Err(MpiError::Call { call: call(), message: self.message(code) }),
        }
    }

    pub(super) fn message(&self, code: c_int) -> String {
        let mut text = [0; MAX_ERROR_STRING];
        let mut length = 0;
        // SAFETY: the text has the length that the ABI states.
        unsafe { (self.functions.error_string)(code, text.as_mut_ptr(), &raw mut length) };
        match read_text(&text) {
            text if text.is_empty() => format!("error {code}"),
            text => text,
        }
    }

    /// The launcher that belongs to the library: the one beside it.
    pub(super) fn mpiexec(&self) -> PathBuf {
        mpiexec_of(&self.path).unwrap_or("mpiexec".into())
    }
}

/// The launcher in the folder `bin` beside the folder of a library.
pub(super) fn mpiexec_of(library: &Path) -> Option<PathBuf> {
    let mpiexec = library.parent()?.parent()?.join("bin/mpiexec");
    mpiexec.is_file().then_some(mpiexec)
}

/// The text before the first null, which the array ends with.
fn read_text(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|&byte| byte as u8).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().trim().to_owned(),
        Err(_) => String::new(),
    }
}

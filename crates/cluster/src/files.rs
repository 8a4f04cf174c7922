//! Files that the members of a job read from one another directly, without the coordinator.
//!
//! Each member serves one folder. A connection is one request: both sides send a nonce and prove
//! that they know the job's secret, then the member names a file and a range, and gets its bytes.

use crate::secret::{Side, nonce, prove_bytes, verify_bytes};
use crate::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How long the other side may be silent.
const SILENCE: Duration = Duration::from_secs(10);

/// The longest name of a file.
const LONGEST_NAME: u32 = 4096;

/// The most requests that are served at the same time.
const MOST_REQUESTS: usize = 32;

/// What is sent instead of a length when there is no such file.
const MISSING: u64 = u64::MAX;

/// The length of single reads and writes.
const CHUNK: usize = 1 << 20;

/// A range of bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    /// The first byte.
    pub offset: u64,
    /// The most bytes; those that the file has are sent.
    pub length: u64,
}

impl Bytes {
    /// All bytes.
    pub const ALL: Bytes = Bytes { offset: 0, length: u64::MAX };
}

/// A folder that is served until this is dropped.
pub(crate) struct FileServer {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl FileServer {
    pub fn start(listener: TcpListener, folder: PathBuf, secret: &str) -> Result<FileServer> {
        let system = |source| Error::System { what: "serve files", source };
        let address = listener.local_addr().map_err(system)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (stop, secret) = (Arc::clone(&stopped), secret.to_owned());
        let serve = move || {
            let requests = Arc::new(AtomicUsize::new(0));
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let (folder, secret) = (folder.clone(), secret.clone());
                // Others wait until one has ended.
                while requests.load(Ordering::Relaxed) >= MOST_REQUESTS {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let under_way = Arc::clone(&requests);
                under_way.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || {
                    // Whoever asked finds out.
                    let _ = answer(stream, &folder, &secret);
                    under_way.fetch_sub(1, Ordering::Relaxed);
                });
            }
        };
        std::thread::Builder::new().name("files".into()).spawn(serve).map_err(system)?;
        Ok(FileServer { address, stopped })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // The thread waits for a connection: this is one.
        let port = self.address.port();
        let here = if self.address.is_ipv6() {
            format!("[::1]:{port}")
        } else {
            format!("127.0.0.1:{port}")
        };
        let address = here.parse().unwrap_or(self.address);
        let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    }
}

/// Serves one request.
fn answer(mut stream: TcpStream, folder: &Path, secret: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    stream.set_nodelay(true)?;
    let theirs: [u8; 32] = read(&mut stream)?;
    let mine = nonce().map_err(io::Error::other)?;
    let nonces = [theirs, mine].concat();
    stream.write_all(&mine)?;
    stream.write_all(&prove_bytes(secret, Side::Coordinator, &nonces))?;
    let proof: [u8; 32] = read(&mut stream)?;
    if !verify_bytes(secret, Side::Member, &nonces, &proof) {
        return stream.shutdown(Shutdown::Both);
    }
    let length = u32::from_le_bytes(read(&mut stream)?).min(LONGEST_NAME);
    let mut name = vec![0; length as usize];
    stream.read_exact(&mut name)?;
    let offset = u64::from_le_bytes(read(&mut stream)?);
    let most = u64::from_le_bytes(read(&mut stream)?);
    let opened = served(folder, &name).and_then(|path| File::open(path).ok());
    let Some(file) = opened else { return stream.write_all(&MISSING.to_le_bytes()) };
    let left = file.metadata()?.len().saturating_sub(offset).min(most);
    stream.write_all(&left.to_le_bytes())?;
    let mut chunk = vec![0; CHUNK.min(left as usize)];
    let mut sent = 0;
    while sent < left {
        let length = CHUNK.min((left - sent) as usize);
        file.read_exact_at(&mut chunk[..length], offset + sent)?;
        stream.write_all(&chunk[..length])?;
        sent += length as u64;
    }
    Ok(())
}

/// The path of a file below the folder, if the name is one.
fn served(folder: &Path, name: &[u8]) -> Option<PathBuf> {
    let name = Path::new(std::str::from_utf8(name).ok()?);
    let is_below = name.components().all(|part| matches!(part, Component::Normal(_)));
    is_below.then(|| folder.join(name))
}

/// Reads bytes of a file that another member serves, and returns how many there were.
pub(crate) fn fetch(
    address: &str,
    secret: &str,
    name: &str,
    bytes: Bytes,
    out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<u64> {
    let failed =
        |source| Error::Fetch { name: name.to_owned(), address: address.to_owned(), source };
    request(address, secret, name, bytes, out).map_err(failed)
}

fn request(
    address: &str,
    secret: &str,
    name: &str,
    bytes: Bytes,
    out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    stream.set_nodelay(true)?;
    let mine = nonce().map_err(io::Error::other)?;
    stream.write_all(&mine)?;
    let theirs: [u8; 32] = read(&mut stream)?;
    let nonces = [mine, theirs].concat();
    let proof: [u8; 32] = read(&mut stream)?;
    if !verify_bytes(secret, Side::Coordinator, &nonces, &proof) {
        return Err(io::Error::other("it has another secret"));
    }
    stream.write_all(&prove_bytes(secret, Side::Member, &nonces))?;
    stream.write_all(&(name.len() as u32).to_le_bytes())?;
    stream.write_all(name.as_bytes())?;
    stream.write_all(&bytes.offset.to_le_bytes())?;
    stream.write_all(&bytes.length.to_le_bytes())?;
    let length = u64::from_le_bytes(read(&mut stream)?);
    if length == MISSING {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut chunk = vec![0; CHUNK.min(length as usize)];
    let mut left = length;
    while left > 0 {
        let count = CHUNK.min(left as usize);
        stream.read_exact(&mut chunk[..count])?;
        out(&chunk[..count])?;
        left -= count as u64;
    }
    Ok(length)
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, SILENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::listen;

    #[test]
    fn members_read_files_of_the_folder_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..3 * CHUNK + 5).map(|i| (i / 3) as u8).collect();
        std::fs::create_dir(folder.path().join("served")).unwrap();
        std::fs::write(folder.path().join("served/file"), &content).unwrap();
        std::fs::write(folder.path().join("other"), "private").unwrap();
        let served = folder.path().join("served");
        let server = FileServer::start(listen(0, true).unwrap(), served, "secret").unwrap();
        let address = format!("127.0.0.1:{}", server.port());
        let get = |secret: &str, name: &str, bytes| {
            let mut found = Vec::new();
            let mut add = |bytes: &[u8]| {
                found.extend_from_slice(bytes);
                Ok(())
            };
            fetch(&address, secret, name, bytes, &mut add).map(|_| found)
        };
        assert!(get("secret", "file", Bytes::ALL).unwrap() == content);
        let part = Bytes { offset: 7, length: 9 };
        assert_eq!(get("secret", "file", part).unwrap(), content[7..16]);
        for name in ["../other", "/etc/passwd", "missing", "", "./../other"] {
            assert!(get("secret", name, Bytes::ALL).is_err(), "{name}");
        }
        let error = get("guess", "file", Bytes::ALL).unwrap_err().to_string();
        assert!(error.contains("another secret"), "{error}");
        drop(server);
        assert!(get("secret", "file", Bytes::ALL).is_err());
    }
}

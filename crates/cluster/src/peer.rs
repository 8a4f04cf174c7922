//! A connection to the coordinator: whose it is, and when it ends.
//!
//! Whoever connects is a stranger until `Join` succeeds. Strangers have little time and little
//! room: when there are too many the oldest is dropped, since members need milliseconds.

use crate::secret;
use crate::state::State;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::transport::server::Connected;

/// How long a stranger may take to join.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many strangers may be connected.
const MOST_STRANGERS: usize = 512;

/// What is known of a connection.
pub(crate) struct Connection {
    pub address: SocketAddr,
    /// The coordinator's nonce for this connection.
    pub nonce: [u8; 32],
    /// What the stranger stated.
    pub hello: OnceLock<crate::messages::Hello>,
    /// The process, once it has joined.
    pub process: OnceLock<usize>,
}

/// The doorkeeper: makes connections of sockets, and drops the oldest strangers.
#[derive(Default)]
pub(crate) struct Strangers(Mutex<VecDeque<oneshot::Sender<()>>>);

impl Strangers {
    pub fn admit(&self, socket: TcpStream, state: &Arc<State>) -> io::Result<Peer> {
        socket.set_nodelay(true)?;
        let address = socket.peer_addr()?;
        let nonce = secret::nonce().map_err(io::Error::other)?;
        let (keep, dropped) = oneshot::channel();
        let mut strangers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        strangers.push_back(keep);
        if strangers.len() > MOST_STRANGERS {
            // Those that have joined since do not mind.
            strangers.pop_front();
        }
        Ok(Peer {
            socket,
            connection: Arc::new(Connection {
                address,
                nonce,
                hello: OnceLock::new(),
                process: OnceLock::new(),
            }),
            state: Arc::clone(state),
            end: Box::pin(async move { drop(timeout(PATIENCE, dropped).await) }),
            ended: false,
            last_read: Instant::now(),
        })
    }
}

/// A connected socket.
pub(crate) struct Peer {
    socket: TcpStream,
    connection: Arc<Connection>,
    state: Arc<State>,
    /// When a stranger has to go.
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    ended: bool,
    last_read: Instant,
}

impl Connected for Peer {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ended {
            self.ended = self.end.as_mut().poll(context).is_ready();
        }
        if self.ended && self.connection.process.get().is_none() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        if polled.is_ready() {
            self.last_read = Instant::now();
        }
        polled
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        match self.connection.process.get() {
            Some(process) => self.state.closed(*process, self.last_read.elapsed()),
            None => self.state.stranger(self.connection.address.ip()),
        }
    }
}

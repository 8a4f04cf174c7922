//! The coordinator: a gRPC service on a thread of its own, in process 0 or in a launcher.

use crate::messages::{
    Challenge, Empty, Event, Fail, Gather, Gathered, Get, Hello, Join, MAX_MESSAGE,
    MAX_STRANGE_MESSAGE, Progress, Put, Value, method,
};
use crate::peer::{Connection, Strangers};
use crate::secret::{self, Side};
use crate::state::State;
use crate::{Error, Failure, Result};
use prost::Message;
use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::body::Body;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// The shortest time between two news of who is missing.
const NEWS: Duration = Duration::from_millis(200);

/// How long process 0 lives after its own failure, so that the others hear of it.
const HEAD_START: Duration = Duration::from_millis(100);

/// How much of a stream may be under way: a value of 64 MiB would be slow otherwise.
pub(crate) const WINDOW: u32 = 4 << 20;

/// When silence is a failure. A closed connection is one at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// How long a connection may be silent before a sign of life is requested.
    pub interval: Duration,
    /// How long the answer may take.
    pub timeout: Duration,
}

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat { interval: Duration::from_secs(1), timeout: Duration::from_secs(5) }
    }
}

/// Binds a port for the coordinator: a free one if it is 0. On loopback alone, or on all
/// interfaces: a host's name need not resolve to an address of its own.
pub fn listen(port: u16, loopback: bool) -> Result<TcpListener> {
    let addresses: [SocketAddr; 2] = if loopback {
        [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
    } else {
        // Where there is IPv6, this is for IPv4 too.
        [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
    };
    TcpListener::bind(&addresses[..])
        .map_err(|source| Error::Listen { address: format!("port {port}"), source })
}

/// A running coordinator. It ends when dropped.
pub struct Coordinator {
    address: SocketAddr,
    state: Arc<State>,
    thread: Background,
}

impl Coordinator {
    /// Starts a coordinator for a number of processes. Members of another `version` are refused.
    pub fn start(
        listener: TcpListener,
        count: usize,
        secret: &str,
        version: &str,
        heartbeat: Heartbeat,
    ) -> Result<Coordinator> {
        let system = |source| Error::System { what: "start the coordinator", source };
        let address = listener.local_addr().map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let state = Arc::new(State::new(count, secret.to_owned(), version.to_owned(), heartbeat));
        let served = Arc::clone(&state);
        let thread = Background::start("coordinator", async move {
            if let Err(error) = serve(listener, served).await {
                tracing::error!("the coordinator ended: {error}");
            }
        })?;
        Ok(Coordinator { address, state, thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job's failure, if it has failed.
    pub fn failure(&self) -> Option<Failure> {
        self.state.failure()
    }

    /// The step that the job would go on from, as it reported last.
    pub fn progress(&self) -> u64 {
        self.state.progress.load(Ordering::Relaxed)
    }

    /// Who has joined and not left.
    pub fn present(&self) -> Vec<usize> {
        self.state.present()
    }

    /// Lets the others hear of a failure, before process 0 and this coordinator end.
    pub(crate) fn outlive_failure(&self) {
        std::thread::sleep(HEAD_START);
    }

    /// Waits until all processes have left, the job has failed, or the time is over. Returns who is
    /// still there.
    pub(crate) fn wait_for_end(&self, timeout: Duration) -> Vec<usize> {
        let mut presence = self.state.presence.subscribe();
        let _ = self.thread.handle.block_on(async {
            tokio::time::timeout(timeout, async {
                tokio::select! {
                    _ = presence.wait_for(|presence| presence.left == self.state.count) => (),
                    _ = self.state.failed(0) => (),
                }
            })
            .await
        });
        self.state.present()
    }
}

/// A thread that runs a future, until that ends or this is dropped.
pub(crate) struct Background {
    pub handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub fn start(
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Background> {
        let system = |source| Error::System { what: "start a thread", source };
        let runtime: Runtime =
            Builder::new_current_thread().enable_all().build().map_err(system)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = work => (),
                        _ = stopped => (),
                    }
                });
            })
            .map_err(system)?;
        Ok(Background { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: TcpListener,
    state: Arc<State>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let strangers = Strangers::default();
    let admitted = Arc::clone(&state);
    let incoming = TcpListenerStream::new(listener)
        .map(move |socket| socket.and_then(|socket| strangers.admit(socket, &admitted)));
    let heartbeat = state.heartbeat;
    let service = service_fn(move |request: http::Request<Body>| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(answer(state, request).await) }
    });
    Server::builder()
        .http2_keepalive_interval(Some(heartbeat.interval))
        .http2_keepalive_timeout(Some(heartbeat.timeout))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(1024)
        .serve_with_incoming(service, incoming)
        .await?;
    Ok(())
}

/// Answers one request. Nothing but `Hello` and `Join` is read of a stranger.
async fn answer(state: Arc<State>, request: http::Request<Body>) -> http::Response<Body> {
    let Some(connection) = request.extensions().get::<Arc<Connection>>().map(Arc::clone) else {
        return Status::internal("a request without a connection").into_http();
    };
    let path = request.uri().path().to_owned();
    let (state, connection) = (&state, &connection);
    match (path.as_str(), connection.process.get().copied()) {
        (method::HELLO, _) => {
            unary(request, |hello| async move { greet(state, connection, hello) }).await
        }
        (method::JOIN, _) => join(state, connection, request).await,
        (_, None) => Status::unauthenticated("join first").into_http(),
        (method::PUT, _) => {
            unary(
                request,
                |Put { key, value }| async move { state.put(key, value).map(|()| Empty {}) },
            )
            .await
        }
        (method::GET, Some(process)) => {
            unary(request, |Get { key, timeout_ms }| async move {
                let value = state.get(process, key, Duration::from_millis(timeout_ms)).await?;
                value.map(|value| Value { value }).ok_or_else(|| Status::not_found(""))
            })
            .await
        }
        (method::GATHER, Some(process)) => {
            unary(request, |Gather { name, value, timeout_ms }| async move {
                let timeout = Duration::from_millis(timeout_ms);
                let values = state.gather(process, &name, value, timeout).await?;
                Ok(Gathered { values: values.to_vec() })
            })
            .await
        }
        (method::FAIL, Some(process)) => {
            unary(request, |Fail { message, is_final }| async move {
                state.reported(process, message, is_final);
                Ok(Empty {})
            })
            .await
        }
        (method::PROGRESS, Some(_)) => {
            unary(request, |Progress { step }| async move {
                state.progress.fetch_max(step, Ordering::Relaxed);
                Ok(Empty {})
            })
            .await
        }
        (method::LEAVE, Some(process)) => {
            unary(request, |Empty {}| async move {
                state.leave(process);
                Ok(Empty {})
            })
            .await
        }
        _ => Status::unimplemented("no such method").into_http(),
    }
}

/// Answers a request of one message by one message.
async fn unary<M, R, F>(
    request: http::Request<Body>,
    mut handle: impl FnMut(M) -> F,
) -> http::Response<Body>
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
    F: Future<Output = Result<R, Status>>,
{
    let service = service_fn(|request: Request<M>| {
        let handled = handle(request.into_inner());
        async move { handled.await.map(Response::new) }
    });
    grpc(&request).unary(service, request).await
}

/// The codec of a request, with limits: strangers have little to say.
fn grpc<M, R>(request: &http::Request<Body>) -> tonic::server::Grpc<ProstCodec<R, M>>
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
{
    let strange = matches!(request.uri().path(), method::HELLO | method::JOIN);
    tonic::server::Grpc::new(ProstCodec::default())
        .max_decoding_message_size(if strange { MAX_STRANGE_MESSAGE } else { MAX_MESSAGE })
        .max_encoding_message_size(MAX_MESSAGE)
}

/// Proves to a stranger that this is the coordinator of its job.
fn greet(state: &State, connection: &Connection, hello: Hello) -> Result<Challenge, Status> {
    let proof = secret::prove(&state.secret, Side::Coordinator, &connection.nonce, &hello);
    match connection.hello.set(hello) {
        Ok(()) => Ok(Challenge { nonce: connection.nonce.to_vec(), proof }),
        Err(_) => Err(Status::failed_precondition("one Hello per connection")),
    }
}

/// Lets a stranger in that proves to be of the job, and tells it the news from then on.
async fn join(
    state: &Arc<State>,
    connection: &Arc<Connection>,
    request: http::Request<Body>,
) -> http::Response<Body> {
    let service = service_fn(|request: Request<Join>| {
        let joined = admit(state, connection, &request.into_inner().proof);
        async move {
            let news = tell(Arc::clone(state), joined?);
            Ok::<_, Status>(Response::new(news.map(Ok::<Event, Status>)))
        }
    });
    grpc(&request).server_streaming(service, request).await
}

fn admit(state: &State, connection: &Connection, proof: &[u8]) -> Result<usize, Status> {
    let nonce = &connection.nonce;
    let hello = connection.hello.get().ok_or_else(|| Status::unauthenticated("Hello first"))?;
    if !secret::verify(&state.secret, Side::Member, nonce, hello, proof) {
        return Err(Status::unauthenticated("another secret"));
    }
    if connection.process.get().is_some() {
        return Err(Status::failed_precondition("one Join per connection"));
    }
    let process = state.join(hello)?;
    let _ = connection.process.set(process);
    Ok(process)
}

/// What a member is told: who is missing, then the hosts of all, then a failure.
fn tell(state: Arc<State>, process: usize) -> UnboundedReceiverStream<Event> {
    let (news, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let rendezvous = async {
            loop {
                let event = state.progress();
                let complete = event.missing.is_empty();
                if news.send(event).is_err() || complete {
                    return;
                }
                let mut presence = state.presence.subscribe();
                let _ = presence.changed().await;
                // Many come at once.
                let all = presence.wait_for(|presence| presence.joined == state.count);
                let _ = tokio::time::timeout(NEWS, all).await;
            }
        };
        let failure = tokio::select! {
            failure = state.failed(process) => failure,
            failure = async { rendezvous.await; state.failed(process).await } => failure,
        };
        let _ = news.send(Event { failure: Some(failure.into()), ..Event::default() });
    });
    UnboundedReceiverStream::new(told)
}

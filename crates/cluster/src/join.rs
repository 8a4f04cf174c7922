//! Joining a job: process 0 starts the coordinator, all connect to it, prove that they know the
//! secret, and wait for one another.

use crate::coordinator::{Background, WINDOW, listen};
use crate::error::name_processes;
use crate::messages::{Challenge, Empty, Event, Fail, Hello, Join, MAX_MESSAGE, method};
use crate::secret::{self, SHORTEST, Side};
use crate::{Coordinator, Error, Heartbeat, Launch, Member, Result};
use http::uri::PathAndQuery;
use prost::Message;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// How long one attempt to connect may take, and the pause before the next.
const ATTEMPT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// How a job is joined.
pub struct Options {
    /// The version of fullshard, which must be that of process 0.
    pub version: String,
    /// How long all may take to come.
    pub timeout: Duration,
    /// When silence is a failure.
    pub heartbeat: Heartbeat,
    /// In process 0: where its coordinator listens, if that is bound already.
    pub listener: Option<TcpListener>,
    /// Called while processes are missing, every `progress_every`.
    pub progress: Box<dyn FnMut(&Waiting) + Send>,
    /// Ten seconds, unless changed.
    pub progress_every: Duration,
}

impl Options {
    /// Five minutes for all to come, the default heartbeat, and progress in the log.
    pub fn new(version: &str) -> Options {
        Options {
            version: version.to_owned(),
            timeout: Duration::from_secs(300),
            heartbeat: Heartbeat::default(),
            listener: None,
            progress: Box::new(|waiting| tracing::warn!("{waiting}")),
            progress_every: Duration::from_secs(10),
        }
    }
}

/// Who is missing while processes wait for one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The number of processes.
    pub count: usize,
    /// Those that are not there yet. Until process 0 answers, it is the only one known.
    pub missing: Vec<usize>,
    /// For how long this one has waited.
    pub elapsed: Duration,
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Waiting { count, missing, elapsed } = self;
        let missing = name_processes(missing);
        write!(f, "waiting for {missing} of {count}, {:.0} s so far", elapsed.as_secs_f64())
    }
}

/// Joins the job, and waits until all processes have.
pub fn join(launch: &Launch, options: Options) -> Result<Member> {
    let Some(address) = &launch.coordinator else {
        let problem = "no coordinator is known: give host:port, or let process 0 listen and \
                       broadcast where (under MPI)";
        return Err(Error::Variable { name: "--coordinator".into(), problem: problem.into() });
    };
    let secret = secret(launch, address)?;
    let Options { version, timeout, heartbeat, listener, progress, progress_every } = options;
    let coordinator = if launch.process_id == 0 && !launch.coordinator_runs {
        let listener = match listener {
            Some(listener) => listener,
            None => listen(port(address)?, is_loopback(address))?,
        };
        Some(Coordinator::start(listener, launch.num_processes, &secret, &version, heartbeat)?)
    } else {
        None
    };
    let hello = Hello {
        process: launch.process_id as u64,
        count: launch.num_processes as u64,
        version,
        host: host_name(),
        nonce: secret::nonce()?.to_vec(),
    };
    let thread = Background::start("cluster member", std::future::pending())?;
    let mut wait =
        Wait { started: Instant::now(), timeout, progress, every: progress_every, called: 0 };
    let address = coordinator.as_ref().map_or_else(|| address.clone(), own_address);
    let joined = thread.handle.block_on(async {
        let endpoint = endpoint(&address, heartbeat)?;
        let retry = !launch.coordinator_runs;
        let (client, mut news) = wait.connect(&endpoint, &address, &secret, &hello, retry).await?;
        let hosts = wait.rendezvous(&client, &mut news, launch.num_processes).await?;
        Ok::<_, Error>((client, news, hosts))
    });
    if let (Err(_), Some(coordinator)) = (&joined, &coordinator) {
        coordinator.outlive_failure();
    }
    let (client, news, hosts) = joined?;
    Ok(Member::new(launch, Rendezvous { client, news, hosts, thread, coordinator }))
}

/// What joining leads to.
pub(crate) struct Rendezvous {
    pub client: Client,
    pub news: Streaming<Event>,
    pub hosts: Vec<String>,
    pub thread: Background,
    pub coordinator: Option<Coordinator>,
}

/// The secret. On loopback a job may do without.
fn secret(launch: &Launch, address: &str) -> Result<String> {
    match &launch.secret {
        Some(secret) if secret.len() < SHORTEST => {
            Err(Error::ShortSecret { length: secret.len(), least: SHORTEST })
        }
        Some(secret) => Ok(secret.clone()),
        None if is_loopback(address) => Ok(String::new()),
        None => Err(Error::NoSecret { coordinator: address.to_owned() }),
    }
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn port(address: &str) -> Result<u16> {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let problem = || format!("{address:?} is not host:port");
    port.ok_or_else(|| Error::Variable { name: "--coordinator".into(), problem: problem() })
}

/// Where process 0 reaches its own coordinator.
fn own_address(coordinator: &Coordinator) -> String {
    let address = coordinator.address();
    if address.ip().is_unspecified() {
        SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())).to_string()
    } else {
        address.to_string()
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn endpoint(address: &str, heartbeat: Heartbeat) -> Result<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| {
        let problem = format!("{address:?} is not host:port ({error})");
        Error::Variable { name: "--coordinator".into(), problem }
    })?;
    Ok(endpoint
        .connect_timeout(ATTEMPT)
        .http2_keep_alive_interval(heartbeat.interval)
        .keep_alive_timeout(heartbeat.timeout)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW))
}

/// Why an attempt failed.
enum Attempt {
    /// Nobody is there, or somebody who is no coordinator: it may come.
    Absent(String),
    /// No further attempt would help.
    Final(Error),
}

/// How long this process has waited, and who wants to know.
struct Wait {
    started: Instant,
    timeout: Duration,
    progress: Box<dyn FnMut(&Waiting) + Send>,
    every: Duration,
    called: u32,
}

impl Wait {
    /// Connects, and tries again until process 0 is there.
    async fn connect(
        &mut self,
        endpoint: &Endpoint,
        address: &str,
        secret: &str,
        hello: &Hello,
        retry: bool,
    ) -> Result<(Client, Streaming<Event>)> {
        loop {
            let attempt = attempt(endpoint, address, secret, hello);
            let reason = match timeout(ATTEMPT, attempt).await {
                Ok(Ok(joined)) => return Ok(joined),
                Ok(Err(Attempt::Final(error))) => return Err(error),
                Ok(Err(Attempt::Absent(reason))) => reason,
                Err(_) => "no answer".to_owned(),
            };
            let waited = self.started.elapsed();
            if !retry || waited + PAUSE > self.timeout {
                let seconds = waited.as_secs_f64();
                return Err(Error::Unreachable { address: address.to_owned(), seconds, reason });
            }
            self.report(hello.count as usize, &[0]);
            sleep(PAUSE).await;
        }
    }

    /// Waits for all, whose hosts are returned.
    async fn rendezvous(
        &mut self,
        client: &Client,
        news: &mut Streaming<Event>,
        count: usize,
    ) -> Result<Vec<String>> {
        let deadline = self.started + self.timeout;
        let mut missing = Vec::new();
        loop {
            let next = deadline.min(self.next_report());
            let event = match timeout_at(next.into(), news.message()).await {
                Ok(event) => event,
                Err(_) if Instant::now() >= deadline => break,
                Err(_) => {
                    self.report(count, &missing);
                    continue;
                }
            };
            let event = event.ok().flatten().ok_or_else(|| {
                Error::Refused("the coordinator ended while processes were missing".to_owned())
            })?;
            if let Some(failure) = event.failure {
                return Err(Error::Failed(failure.into()));
            }
            if event.missing.is_empty() {
                return Ok(event.hosts);
            }
            missing = event.missing.into_iter().map(|process| process as usize).collect();
        }
        let missing = name_processes(&missing);
        let what = "rendezvous".to_owned();
        let error = Error::Missing { what, missing, seconds: self.timeout.as_secs_f64() };
        let last_words = client
            .unary::<_, Empty>(method::FAIL, Fail { message: error.to_string(), is_final: false });
        let _ = timeout(ATTEMPT, last_words).await;
        Err(error)
    }

    fn next_report(&self) -> Instant {
        self.started + self.every * (self.called + 1)
    }

    /// Calls back if it is time to.
    fn report(&mut self, count: usize, missing: &[usize]) {
        if Instant::now() >= self.next_report() {
            self.called += 1;
            let elapsed = self.started.elapsed();
            (self.progress)(&Waiting { count, missing: missing.to_vec(), elapsed });
        }
    }
}

/// Connects, verifies that it is the coordinator, and joins.
async fn attempt(
    endpoint: &Endpoint,
    address: &str,
    secret: &str,
    hello: &Hello,
) -> Result<(Client, Streaming<Event>), Attempt> {
    let channel = endpoint.connect().await.map_err(|error| Attempt::Absent(causes(&error)))?;
    let client = Client { channel, address: address.to_owned() };
    let challenge: Challenge = client
        .unary(method::HELLO, hello.clone())
        .await
        .map_err(|status| Attempt::Absent(status.message().to_owned()))?;
    if !secret::verify(secret, Side::Coordinator, &challenge.nonce, hello, &challenge.proof) {
        let message = format!(
            "the coordinator at {address} has another secret: it is of another job, or \
             FULLSHARD_SECRET differs between processes"
        );
        return Err(Attempt::Final(Error::Refused(message)));
    }
    let proof = secret::prove(secret, Side::Member, &challenge.nonce, hello);
    match client.join(Join { proof }).await {
        Ok(news) => Ok((client, news)),
        Err(status) if status.code() == Code::FailedPrecondition => {
            Err(Attempt::Final(Error::Refused(status.message().to_owned())))
        }
        Err(status) => Err(Attempt::Absent(status.message().to_owned())),
    }
}

/// An error with its causes: what refused a connection is the last of them.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The connection of a member.
pub(crate) struct Client {
    channel: Channel,
    address: String,
}

impl Client {
    pub fn address(&self) -> &str {
        &self.address
    }

    pub async fn unary<M, R>(&self, path: &'static str, message: M) -> Result<R, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(Request::new(message), path, ProstCodec::<M, R>::default()).await;
        answer.map(tonic::Response::into_inner)
    }

    async fn join(&self, message: Join) -> Result<Streaming<Event>, Status> {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(method::JOIN);
        let codec = ProstCodec::<Join, Event>::default();
        let answer = grpc.server_streaming(Request::new(message), path, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    async fn ready(&self) -> Result<tonic::client::Grpc<Channel>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        grpc.ready().await.map_err(|error| Status::unavailable(causes(&error)))?;
        Ok(grpc)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::messages::Put;

    /// Without a proof there is nothing but `Hello` and a failed `Join`.
    #[test]
    fn strangers_get_nothing() {
        let heartbeat = Heartbeat::default();
        let listener = listen(0, true).unwrap();
        let coordinator = Coordinator::start(listener, 2, "secret", "1", heartbeat).unwrap();
        let hello = Hello { process: 1, count: 2, version: "1".into(), ..Hello::default() };
        let thread = Background::start("stranger", std::future::pending()).unwrap();
        thread.handle.block_on(async {
            let address = coordinator.address().to_string();
            let channel = endpoint(&address, heartbeat).unwrap().connect().await.unwrap();
            let client = Client { channel, address };
            let join = |proof| client.join(Join { proof });
            assert_eq!(join(vec![]).await.unwrap_err().code(), Code::Unauthenticated);
            let challenge: Challenge = client.unary(method::HELLO, hello.clone()).await.unwrap();
            let guess = secret::prove("guess", Side::Member, &challenge.nonce, &hello);
            for proof in [guess, challenge.proof, vec![0; 32]] {
                assert_eq!(join(proof).await.unwrap_err().code(), Code::Unauthenticated);
            }
            let put = Put { key: "key".into(), value: vec![0; 1000].into() };
            let status = client.unary::<_, Empty>(method::PUT, put).await.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated);
            let long = Hello { host: "h".repeat(5000), ..hello.clone() };
            let status = client.unary::<_, Challenge>(method::HELLO, long).await.unwrap_err();
            assert_eq!(status.code(), Code::OutOfRange, "{status}");
            // It is the proof alone that was missing.
            let right = secret::prove("secret", Side::Member, &challenge.nonce, &hello);
            assert_eq!(join(right).await.unwrap().message().await.unwrap().unwrap().missing, [0]);
        });
        assert_eq!(coordinator.failure(), None);
    }
}

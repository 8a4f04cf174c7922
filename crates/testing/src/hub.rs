//! A local server with the API of the Hugging Face Hub, for tests without a network.
//!
//! Weights are redirected to another path with a linked ETag, as the hub does with large files.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A server, until it is stopped.
pub struct LocalHub {
    address: String,
    state: Arc<Mutex<State>>,
    thread: JoinHandle<()>,
}

/// A request that the server received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The path.
    pub path: String,
    /// The value of the header `Authorization`.
    pub authorization: Option<String>,
    /// The value of the header `Range`.
    pub range: Option<String>,
    /// All other lines.
    pub others: Vec<String>,
}

#[derive(Default)]
struct State {
    listings: HashMap<String, String>,
    files: HashMap<String, File>,
    requests: Vec<Request>,
    token: Option<String>,
    cut: Option<(String, usize)>,
    stopped: bool,
}

#[derive(Clone)]
struct File {
    commit: String,
    content: Vec<u8>,
}

impl LocalHub {
    /// Starts a server without repositories.
    pub fn start() -> LocalHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = (address.clone(), state.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.1.lock().unwrap().stopped {
                    return;
                }
                answer(stream.unwrap(), &shared.0, &shared.1);
            }
        });
        LocalHub { address, state, thread }
    }

    /// The address, for `HF_ENDPOINT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Adds or moves a revision of a model.
    pub fn model(&self, name: &str, revision: &str, commit: &str, files: &[(&str, &[u8])]) {
        self.add(&format!("/api/models/{name}"), &format!("/{name}"), revision, commit, files);
    }

    /// Adds or moves a revision of a dataset.
    pub fn dataset(&self, name: &str, revision: &str, commit: &str, files: &[(&str, &[u8])]) {
        let (api, root) = (format!("/api/datasets/{name}"), format!("/datasets/{name}"));
        self.add(&api, &root, revision, commit, files);
    }

    fn add(&self, api: &str, root: &str, revision: &str, commit: &str, files: &[(&str, &[u8])]) {
        let mut state = self.state.lock().unwrap();
        let names = files.iter().map(|(path, _)| format!("{{\"rfilename\": \"{path}\"}}"));
        let names: Vec<String> = names.collect();
        let listing = format!("{{\"sha\": \"{commit}\", \"siblings\": [{}]}}", names.join(","));
        for revision in [&revision.replace('/', "%2F"), commit] {
            state.listings.insert(format!("{api}/revision/{revision}"), listing.clone());
        }
        for (path, content) in files {
            let file = File { commit: commit.to_owned(), content: content.to_vec() };
            state.files.insert(format!("{root}/resolve/{commit}/{path}"), file);
        }
    }

    /// Refuses files without this token.
    pub fn require_token(&self, token: &str) {
        self.state.lock().unwrap().token = Some(token.to_owned());
    }

    /// Breaks off the next download of a file after this many bytes.
    pub fn break_off(&self, file: &str, bytes: usize) {
        self.state.lock().unwrap().cut = Some((file.to_owned(), bytes));
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Stops the server, so that it cannot be reached.
    pub fn stop(self) {
        self.state.lock().unwrap().stopped = true;
        let _ = TcpStream::connect(self.address.trim_start_matches("http://"));
        self.thread.join().unwrap();
    }
}

fn answer(mut stream: TcpStream, address: &str, state: &Mutex<State>) {
    let Some(request) = read(&stream) else { return };
    let mut state = state.lock().unwrap();
    state.requests.push(request.clone());
    let _ = match state.respond(&request, address) {
        Ok(response) => stream.write_all(&response),
        Err(status) => {
            let response = format!("{status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(response.as_bytes())
        }
    };
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut request = Request { path, authorization: None, range: None, others: Vec::new() };
    for line in lines.take_while(|line| !line.is_empty()) {
        match line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value)) {
            Some((name, value)) if name == "authorization" => {
                request.authorization = Some(value.to_owned());
            }
            Some((name, value)) if name == "range" => request.range = Some(value.to_owned()),
            _ => request.others.push(line),
        }
    }
    Some(request)
}

impl State {
    /// The response, or the status line of an error.
    fn respond(&mut self, request: &Request, address: &str) -> Result<Vec<u8>, &'static str> {
        if let Some(listing) = self.listings.get(&request.path) {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}", listing.len());
            return Ok(format!("{head}\r\nConnection: close\r\n\r\n{listing}").into_bytes());
        }
        let path = request.path.strip_prefix("/large").unwrap_or(&request.path);
        let file = self.files.get(path).cloned().ok_or("HTTP/1.1 404 Not Found")?;
        if let Some(token) = &self.token {
            match &request.authorization {
                None => return Err("HTTP/1.1 401 Unauthorized"),
                Some(given) if *given != format!("Bearer {token}") => {
                    return Err("HTTP/1.1 403 Forbidden");
                }
                Some(_) => {}
            }
        }
        let mut hasher = DefaultHasher::new();
        file.content.hash(&mut hasher);
        let (etag, commit) = (hasher.finish(), &file.commit);
        if path == request.path && path.ends_with(".safetensors") {
            return Ok(format!(
                "HTTP/1.1 302 Found\r\nLocation: {address}/large{path}\r\nX-Linked-Etag: \
                 \"{etag:x}\"\r\nX-Repo-Commit: {commit}\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            )
            .into_bytes());
        }
        let (from, to) = range(request.range.as_deref(), file.content.len())
            .ok_or("HTTP/1.1 416 Range Not Satisfiable")?;
        let mut response = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes \
             {from}-{}/{}\r\nEtag: \"{etag:x}\"\r\nX-Repo-Commit: {commit}\r\n\
             Connection: close\r\n\r\n",
            to - from,
            to - 1,
            file.content.len()
        )
        .into_bytes();
        let mut body = &file.content[from..to];
        if self.cut.as_ref().is_some_and(|(file, _)| path.ends_with(file.as_str()))
            && body.len() > 1
        {
            body = &body[..self.cut.take().map_or(0, |(_, bytes)| bytes)];
        }
        response.extend_from_slice(body);
        Ok(response)
    }
}

/// The range of `bytes=FROM-` or `bytes=FROM-LAST`; everything without one.
fn range(range: Option<&str>, length: usize) -> Option<(usize, usize)> {
    let Some(range) = range else { return Some((0, length)) };
    let (from, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let from: usize = from.parse().ok()?;
    let to = last.parse().map_or(length, |last: usize| last + 1);
    (from < to && to <= length).then_some((from, to))
}

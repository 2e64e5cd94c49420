//! Serving metrics over HTTP/1: one request a connection, few connections, each for a bounded time.
//! Whoever comes may be hostile: they cost a task each, and the sandboxes a look a second at most.
//! When all places are taken, who has been there longest without a request gives way.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::Listen;
use super::families::text;
use crate::oci::watch::Watcher;

/// Connections at a time.
const CONNECTIONS: usize = 64;
/// How long a client may take for the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may last: longer than a look, and others that are before it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// For how long the answer to one stands for others.
const FRESH: Duration = Duration::from_secs(1);
/// After the host refused to accept, as it does when it has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// Of a socket: those who may scrape are the owner and the group.
const SOCKET_MODE: u32 = 0o660;

/// Looks when it is asked to.
struct Scraper {
    watcher: Watcher,
    last: Option<(Instant, Bytes)>,
}

impl Scraper {
    fn scrape(&mut self) -> Result<Bytes> {
        if let Some((at, text)) = &self.last
            && at.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(text(&self.watcher.look())?);
        self.last = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

/// Serves until a signal asks this program to end.
///
/// # Errors
/// When nobody can listen there.
pub fn serve(listen: &Listen, watcher: Watcher) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Scrapers wait for each other.
        .max_blocking_threads(2)
        .build()
        .context("starting the server")?;
    let result = runtime.block_on(until_asked(listen, watcher));
    // A look that is under way is of no use any more.
    runtime.shutdown_background();
    result
}

async fn until_asked(listen: &Listen, watcher: Watcher) -> Result<()> {
    let mut ends = Vec::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        ends.push(signal(kind).context("catching signals")?);
    }
    let scraper = Arc::new(Mutex::new(Scraper { watcher, last: None }));
    let [mut term, mut int, mut hup] =
        <[_; 3]>::try_from(ends).map_err(|_| anyhow::anyhow!("catching signals"))?;
    tokio::select! {
        result = accept(listen, scraper) => result,
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
        _ = hup.recv() => Ok(()),
    }
}

async fn accept(listen: &Listen, scraper: Arc<Mutex<Scraper>>) -> Result<()> {
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("listening at {address}"))?;
            each(|| async { listener.accept().await.map(|(stream, _)| stream) }, scraper).await
        }
        Listen::Unix(path) => {
            let (listener, _name) =
                listen_unix(path).with_context(|| format!("listening at {}", path.display()))?;
            each(|| async { listener.accept().await.map(|(stream, _)| stream) }, scraper).await
        }
    }
}

/// The name of a socket, which goes with this program unless it is another's by then.
struct Name(PathBuf, u64);

impl Drop for Name {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.0).is_ok_and(|m| m.ino() == self.1) {
            std::fs::remove_file(&self.0).ok();
        }
    }
}

/// Listens at a path. A socket that nobody listens at any more gives way.
fn listen_unix(path: &Path) -> Result<(UnixListener, Name)> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => bail!("there is something else"),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            _ => bail!("another program listens there"),
        },
        Err(_) => {}
    }
    // Nobody else may connect in the moment before its mode is set.
    let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(old);
    let listener = listener?;
    let name = Name(path.to_owned(), std::fs::symlink_metadata(path)?.ino());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok((listener, name))
}

/// Serves each connection that comes.
async fn each<S, F>(accept: impl Fn() -> F, scraper: Arc<Mutex<Scraper>>) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<S>>,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut clients: VecDeque<Client> = VecDeque::new();
    loop {
        match accept().await {
            Ok(stream) => {
                clients.retain(|client| !client.task.is_finished());
                if places.available_permits() == 0
                    && let Some(at) = clients.iter().position(Client::is_silent)
                    && let Some(client) = clients.remove(at)
                {
                    tracing::debug!("a client that asked nothing gives way to another");
                    client.task.abort();
                }
                let place = places.clone().acquire_owned().await.context("waiting for a place")?;
                let stage = Arc::new(Stage::default());
                let task = tokio::spawn(connection(stream, place, scraper.clone(), stage.clone()));
                clients.push_back(Client { task: task.abort_handle(), stage });
            }
            Err(e) => {
                tracing::warn!("accepting a connection: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// How far a connection has come.
#[derive(Default)]
struct Stage {
    /// Its request is there.
    has_asked: AtomicBool,
    /// Notified when the answer is.
    answered: Notify,
}

/// Who has a place.
struct Client {
    task: AbortHandle,
    stage: Arc<Stage>,
}

impl Client {
    fn is_silent(&self) -> bool {
        !self.stage.has_asked.load(Ordering::Relaxed)
    }
}

async fn connection<S>(
    stream: S,
    _place: OwnedSemaphorePermit,
    scraper: Arc<Mutex<Scraper>>,
    stage: Arc<Stage>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let (scraper, stage) = (scraper.clone(), stage.clone());
        async move {
            stage.has_asked.store(true, Ordering::Relaxed);
            let response = respond(&request, scraper).await;
            stage.answered.notify_one();
            Ok::<_, Infallible>(response)
        }
    });
    let too_long = async {
        let taken = async {
            stage.answered.notified().await;
            tokio::time::sleep(ANSWER_TIMEOUT).await;
        };
        tokio::time::timeout(CONNECTION_TIMEOUT, taken).await.ok();
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        result = served => if let Err(e) = result {
            tracing::debug!("a client's connection: {e}");
        },
        () = too_long => tracing::debug!("a client's connection took too long"),
    }
}

async fn respond(
    request: &Request<Incoming>,
    scraper: Arc<Mutex<Scraper>>,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    let look = move || scraper.lock().unwrap_or_else(PoisonError::into_inner).scrape();
    match tokio::task::spawn_blocking(look).await {
        Ok(Ok(text)) => {
            let mut response = Response::new(Full::new(text));
            let kind = HeaderValue::from_static(prometheus::TEXT_FORMAT);
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        failed => {
            tracing::error!("metrics: {failed:?}");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "see the log of quark metrics\n")
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

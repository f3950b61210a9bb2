//! Accepts connections: bounded in number, in the time a request's head may take, in the head's size and in the time its answer may lie unread
//! (axum's own loop bounds none of them).

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use infra::shutdown::CancellationToken;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::task::TaskTracker;

use super::stream::Stream;

/// Connections at one moment; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 16_384;

/// A request's head arrives within this; it is also how long a connection may idle.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// Nothing of an answer is taken for this long: a peer that never reads would keep its connection for ever, and hold up the service's end.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// Largest head in bytes: the longest token and as much again.
const MAX_HEAD: usize = 16 * 1024;

/// Pause after an accept that failed for want of file descriptors or memory, which trying again at once would not mend.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`, then lets each connection finish the request it is in; returns when all have.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &room)).await {
        match accepted {
            Ok((stream, permit)) => {
                connections.spawn(connection(stream, permit, router.clone(), stop.clone()));
            }
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Without it, small answers wait for the peer's delayed acknowledgement.
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

/// The peer's doing, not the listener's.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | InvalidInput | NotConnected)
}

async fn connection(stream: TcpStream, permit: OwnedSemaphorePermit, router: Router, stop: CancellationToken) {
    let _permit = permit;
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(MAX_HEAD)
        // Else a request whose sender hangs up at once is thrown away before its call is even begun.
        .half_close(true)
        .serve_connection(TokioIo::new(Stream::new(stream, WRITE_PATIENCE)), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = match stop.run_until_cancelled(connection.as_mut()).await {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

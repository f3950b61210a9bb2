//! A TCP proxy in front of one server, which can be told to behave as a bad network does.
//!
//! It keeps its port for its whole life, whatever becomes of the server: clients know one address. What it does to a connection is one
//! [`Mode`] for all of them, looked at again with every piece of data, so a change reaches the connections there are. It never passes on a
//! stream with a hole in it: a connection that lost bytes is reset once the mode that swallowed them is over, as the two ends of a real
//! network notice it sooner or later.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    runtime::Runtime,
    sync::watch,
    time::sleep,
};

/// What happens between clients and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    #[default]
    Open,
    /// Present connections are reset, and each new one at once.
    Refuse,
    /// Half-open: connections stay and can be made, but whatever is sent, in either direction, is lost.
    Silent,
    /// As `Silent`, but nothing is lost: all of it arrives when the mode is over, however late.
    Hold,
    /// Requests reach the server, its replies are lost.
    DropReplies,
    /// Each piece of data, in either direction, waits so long.
    Delay(Duration),
    /// So many bytes a second pass, for each connection and direction. 0 counts as 1.
    Slow(u32),
}

/// Data in one piece, in bytes: small beside what the servers' own buffers hold.
const PIECE: usize = 64 * 1024;
/// Pieces a second of a slow connection: often enough to look like a slow one, not like a stop.
const SLOW_PIECES: u32 = 20;

/// See the module. Ends, and resets its connections, when dropped.
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    runtime: Option<Runtime>,
}

#[derive(Clone, Copy, Default)]
struct State {
    target: Option<SocketAddr>,
    mode: Mode,
    /// How often all connections were cut.
    cuts: u64,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1, and resets every connection until it has a target.
    ///
    /// # Errors
    /// When the system gives no thread or no port.
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("proxy").enable_all().build()?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let listener = {
            let _in_it = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (state, receiver) = watch::channel(State::default());
        runtime.spawn(accept(listener, receiver));
        Ok(Self { port, state, runtime: Some(runtime) })
    }

    /// As [`Proxy::start`], in front of the server at this port of 127.0.0.1.
    ///
    /// # Errors
    /// As there.
    pub fn to(port: u16) -> io::Result<Self> {
        let proxy = Self::start()?;
        proxy.set_target(port);
        Ok(proxy)
    }

    /// Where clients connect to, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// New connections go to the server at this port of 127.0.0.1; present ones stay with theirs.
    pub fn set_target(&self, port: u16) {
        self.state.send_modify(|state| state.target = Some((Ipv4Addr::LOCALHOST, port).into()));
    }

    /// Changes the mode, for present and new connections.
    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }

    /// The present mode.
    pub fn mode(&self) -> Mode {
        self.state.borrow().mode
    }

    /// Resets all present connections.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not waited for: this may be an async test.
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, state: watch::Receiver<State>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => drop(tokio::spawn(serve(client, state.clone()))),
            // Too many open files, say: the next try may be luckier.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(mut client: TcpStream, mut state: watch::Receiver<State>) {
    let State { target, mode, cuts } = *state.borrow();
    let server = match target {
        Some(target) if mode != Mode::Refuse => TcpStream::connect(target).await,
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    };
    let outcome = match server {
        Ok(mut server) => {
            // Small requests and replies must not wait for each other.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (requests, replies) = (state.clone(), state.clone());
            let (client_read, client_write) = client.split();
            let (server_read, server_write) = server.split();
            let both = async {
                tokio::try_join!(
                    pump(client_read, server_write, requests, |mode| mode == Mode::Silent),
                    pump(server_read, client_write, replies, |mode| matches!(mode, Mode::Silent | Mode::DropReplies)),
                )
            };
            let ended = tokio::select! {
                ended = both => ended.map(drop),
                _ = state.wait_for(|now| now.cuts != cuts || now.mode == Mode::Refuse) => Err(io::ErrorKind::ConnectionReset.into()),
            };
            if ended.is_err() {
                let _ = server.set_zero_linger();
            }
            ended
        }
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        // A reset instead of an end: nobody takes it for a good one.
        let _ = client.set_zero_linger();
    }
}

/// Carries one direction until its end. An error means that the connection is to be reset.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut state: watch::Receiver<State>,
    swallows: impl Fn(Mode) -> bool,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut lost = false;
    loop {
        let mode = state.borrow_and_update().mode;
        if lost && !swallows(mode) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let piece = match mode {
            Mode::Slow(rate) => usize::try_from((rate / SLOW_PIECES).max(1)).unwrap_or(PIECE).min(PIECE),
            _ => PIECE,
        };
        let count = tokio::select! {
            biased;
            changed = state.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Err(io::ErrorKind::ConnectionReset.into()),
            },
            read = from.read(&mut buffer[..piece]), if mode != Mode::Hold => read?,
        };
        if swallows(mode) {
            lost = true;
            if count == 0 {
                // The end is lost as well; the other side learns of it by the reset.
                let _ = state.wait_for(|now| !swallows(now.mode)).await;
            }
            continue;
        }
        match mode {
            Mode::Delay(wait) => sleep(wait).await,
            Mode::Slow(rate) => sleep(Duration::from_secs_f64(count as f64 / f64::from(rate.max(1)))).await,
            _ => {}
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

//! The generator: calls over connections that stay open, on one thread, with as little work a call as the protocol allows, since it shares its
//! cores with what it measures. It reads of an answer only the status, and the length to know where the next one begins.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use load::Quantiles;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    task::LocalSet,
};

/// How long a closed loop may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Largest answer, in bytes.
const LONGEST: usize = 64 * 1024;

/// What a stretch of calls got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    /// Answers by status; 0: none came.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// To the answers with the wanted status: in a closed loop from the call, in an open one from its intended instant.
    pub(crate) latency: Quantiles,
    /// From here intended instants count.
    pub(crate) began: Option<Instant>,
    pub(crate) elapsed: Duration,
}

impl Answers {
    pub(crate) fn of(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// Answers of this status a second.
    pub(crate) fn rate(&self, status: u16) -> f64 {
        self.of(status) as f64 / self.elapsed.as_secs_f64()
    }

    /// Adds those of the stretch after this one.
    pub(crate) fn add(&mut self, next: Self) {
        next.statuses.into_iter().for_each(|(status, count)| *self.statuses.entry(status).or_default() += count);
        self.latency.add(&next.latency);
        self.began = self.began.or(next.began);
        self.elapsed += next.elapsed;
    }

    /// An error unless every answer has this status. (In a debug build, which only shows that everything runs, any will do.)
    pub(crate) fn only(self, status: u16) -> Result<Self> {
        if cfg!(debug_assertions) {
            return Ok(self);
        }
        let others: Vec<_> = self.statuses.iter().filter(|(found, _)| **found != status).collect();
        anyhow::ensure!(others.is_empty(), "all answers should be {status}, but there are {others:?} beside {}", self.of(status));
        Ok(self)
    }
}

struct Shared {
    calls: Vec<Vec<u8>>,
    wanted: u16,
    next: Cell<usize>,
    answers: RefCell<Answers>,
    /// In an open loop: when each call is due, and a permit for each that is.
    open: Option<(Instant, Vec<Duration>, Arc<Semaphore>)>,
}

/// All calls, each connection sending its next as soon as it has its answer.
pub(crate) fn closed(address: SocketAddr, calls: Vec<Vec<u8>>, connections: usize, wanted: u16) -> Result<Answers> {
    run(address, calls, connections, wanted, None, PATIENCE)
}

/// Each call at its instant, whether or not the ones before have their answers; one that finds no free connection waits, and its latency counts
/// on. `until`: answers that come later do not count.
pub(crate) fn open(
    address: SocketAddr,
    calls: Vec<Vec<u8>>,
    arrivals: Vec<Duration>,
    connections: usize,
    wanted: u16,
    until: Duration,
) -> Result<Answers> {
    run(address, calls, connections, wanted, Some(arrivals), until)
}

fn run(
    address: SocketAddr,
    calls: Vec<Vec<u8>>,
    connections: usize,
    wanted: u16,
    arrivals: Option<Vec<Duration>>,
    until: Duration,
) -> Result<Answers> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async move {
        let mut streams = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = TcpStream::connect(address).await.with_context(|| format!("nobody listens at {address}"))?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let began = Instant::now();
        let open = arrivals.map(|arrivals| (began, arrivals.clone(), announce(began, arrivals)));
        let shared = Rc::new(Shared { calls, wanted, next: Cell::new(0), answers: RefCell::default(), open });
        let tasks: Vec<_> =
            streams.into_iter().map(|stream| tokio::task::spawn_local(keep_calling(Rc::clone(&shared), stream))).collect();
        let all = async {
            for task in tasks {
                // A task neither panics nor is aborted while this runs.
                let _ = task.await;
            }
        };
        let in_time = tokio::time::timeout(until, all).await.is_ok();
        let mut answers = shared.answers.take();
        answers.began = Some(began);
        answers.elapsed = if in_time || shared.open.is_none() { began.elapsed() } else { until };
        anyhow::ensure!(in_time || shared.open.is_some(), "answers were still missing after {until:?}: {:?}", answers.statuses);
        Ok(answers)
    })
}

/// Gives a permit for each call when it is due. Its own thread, because the runtime's timers count in milliseconds.
pub(crate) fn announce(began: Instant, arrivals: Vec<Duration>) -> Arc<Semaphore> {
    let due = Arc::new(Semaphore::new(0));
    let permits = Arc::clone(&due);
    thread::spawn(move || {
        let mut announced = 0;
        while announced < arrivals.len() {
            let now = began.elapsed();
            let reached = announced + arrivals[announced..].partition_point(|at| *at <= now);
            permits.add_permits(reached - announced);
            announced = reached;
            if let Some(next) = arrivals.get(announced) {
                thread::sleep(next.saturating_sub(began.elapsed()));
            }
        }
    });
    due
}

async fn keep_calling(shared: Rc<Shared>, mut stream: TcpStream) {
    let mut buffer = Vec::with_capacity(2048);
    loop {
        let index = shared.next.get();
        if index >= shared.calls.len() {
            return;
        }
        // Whoever waits for a permit here has the next call to come due.
        shared.next.set(index + 1);
        if let Some((_, _, due)) = &shared.open {
            match due.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return,
            }
        }
        let intended = shared.open.as_ref().map_or_else(Instant::now, |(began, arrivals, _)| *began + arrivals[index]);
        let status = ask(&mut stream, &shared.calls[index], &mut buffer).await;
        let mut answers = shared.answers.borrow_mut();
        *answers.statuses.entry(*status.as_ref().unwrap_or(&0)).or_default() += 1;
        match status {
            Ok(status) if status == shared.wanted => answers.latency.record(intended.elapsed()),
            Ok(_) => {}
            // A broken connection is not made again: the run is no good any more, and the statuses say so.
            Err(_) => return,
        }
    }
}

/// One call and its answer's status.
async fn ask(stream: &mut TcpStream, call: &[u8], buffer: &mut Vec<u8>) -> io::Result<u16> {
    stream.write_all(call).await?;
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 || buffer.len() > LONGEST {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(status) = complete(buffer) {
            return Ok(status);
        }
    }
}

/// The status of an answer that is there as a whole.
fn complete(answer: &[u8]) -> Option<u16> {
    const LENGTH: &[u8] = b"content-length:";
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n")?;
    let mut lines = answer[..head].split(|byte| *byte == b'\n');
    let status = std::str::from_utf8(lines.next()?.get(9..12)?).ok()?.parse().ok()?;
    let length = lines.find(|line| line.len() > LENGTH.len() && line[..LENGTH.len()].eq_ignore_ascii_case(LENGTH));
    let length: usize = length.map_or(Some(0), |line| std::str::from_utf8(&line[LENGTH.len()..]).ok()?.trim().parse().ok())?;
    (answer.len() >= head + 4 + length).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_with_its_last_byte() {
        let whole = b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\ndate: x\r\n\r\n{}";
        assert_eq!(complete(whole), Some(202));
        assert!((0..whole.len()).all(|end| complete(&whole[..end]).is_none()));
        assert_eq!(complete(b"HTTP/1.1 204 No Content\r\n\r\n"), Some(204));
    }

    #[test]
    fn calls_are_due_at_their_instants() {
        let began = Instant::now();
        let due = announce(began, vec![Duration::ZERO, Duration::from_millis(20), Duration::from_millis(40)]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(due.acquire_many(3)).unwrap().forget();
        assert!(began.elapsed() >= Duration::from_millis(40));
        assert_eq!(due.available_permits(), 0);
    }
}

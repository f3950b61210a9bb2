//! The buyers themselves: one task each, sharing a bounded number of kept-alive connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::{Semaphore, mpsc},
    time::{MissedTickBehavior, interval, sleep, sleep_until},
};

use crate::{
    Answer, Progress, Report, Shape, Visit,
    cost::Meter,
    schedule::{Arrival, arrivals},
};

/// Time between two calls of the progress callback.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Longest wait before a retry, whatever `Retry-After` says, so that a run ends.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// First wait before a retry where the shop gave none; doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Why a run could not start.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("no HTTP client can be made: {0}")]
    Client(#[from] reqwest::Error),
    /// The plan names no address to buy at.
    #[error("no shop to buy at")]
    NoShop,
}

/// One buyer: his name, for the report, and the token that says so to the shop.
#[derive(Clone, Debug)]
pub struct Buyer {
    pub user: String,
    pub token: String,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Base address of purchase, `http://host:port`; several are taken in turn.
    pub urls: Vec<String>,
    pub voucher: String,
    /// Units each buyer asks for; `None` sends no body (one unit).
    pub quantity: Option<i64>,
    /// All buyers arrive within this time.
    pub window: Duration,
    pub shape: Shape,
    /// Share of buyers (0 to 1) who click a second time at the same instant.
    pub double_clicks: f64,
    /// Times a buyer tries again after overload, an error or no answer.
    pub retries: u32,
    /// Most connections open at once. A buyer who finds none free waits, and his latency counts on.
    pub connections: usize,
    /// For one answer.
    pub timeout: Duration,
    /// Decides who comes when.
    pub seed: u64,
}

struct Shop {
    http: reqwest::Client,
    urls: Vec<String>,
    body: Option<String>,
    connections: Semaphore,
    next: AtomicUsize,
    retries: usize,
    answers: mpsc::UnboundedSender<(Answer, Duration)>,
}

/// Lets all buyers come and go, and gives what they saw. Ends when the last has his last answer.
///
/// `progress` is called a few times a second, and once at the end.
pub async fn run(plan: &Plan, buyers: Vec<Buyer>, mut progress: impl FnMut(Progress)) -> Result<Report, LoadError> {
    if plan.urls.is_empty() {
        return Err(LoadError::NoShop);
    }
    let http = reqwest::Client::builder()
        .pool_max_idle_per_host(plan.connections)
        .timeout(plan.timeout)
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let (answers, mut received) = mpsc::unbounded_channel();
    let path = |url: &String| format!("{}/v1/vouchers/{}/orders", url.trim_end_matches('/'), plan.voucher);
    let shop = Arc::new(Shop {
        http,
        urls: plan.urls.iter().map(path).collect(),
        body: plan.quantity.map(|quantity| format!(r#"{{"quantity":{quantity}}}"#)),
        connections: Semaphore::new(plan.connections.max(1)),
        next: AtomicUsize::new(0),
        retries: plan.retries as usize,
        answers,
    });
    let schedule = arrivals(buyers.len(), plan.window, plan.shape, plan.double_clicks, plan.seed);
    let meter = Meter::start();
    let start = Instant::now();
    let arrived = Arc::new(AtomicUsize::new(0));
    let mut standing = Progress { buyers: buyers.len(), ..Progress::default() };
    let visits = tokio::spawn(send_buyers(shop, buyers, schedule, start, Arc::clone(&arrived)));
    let mut report = Report::default();
    let mut tick = interval(PROGRESS_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    tokio::pin!(visits);
    (report.visits, report.offered) = loop {
        tokio::select! {
            Some((answer, latency)) = received.recv() => {
                standing.count(&answer);
                report.add(&answer, latency);
            }
            _ = tick.tick() => {
                (standing.arrived, standing.elapsed) = (arrived.load(Ordering::Relaxed), start.elapsed());
                progress(standing);
            }
            // The task neither panics nor is aborted; were it so, the report would say that nobody came.
            done = &mut visits => break done.unwrap_or_default(),
        }
    };
    while let Ok((answer, latency)) = received.try_recv() {
        standing.count(&answer);
        report.add(&answer, latency);
    }
    (standing.arrived, standing.elapsed) = (arrived.load(Ordering::Relaxed), start.elapsed());
    progress(standing);
    report.cost = meter.read();
    Ok(report)
}

/// Starts each buyer at his instant and waits for all of them. Says how long it took until all were started.
async fn send_buyers(
    shop: Arc<Shop>,
    buyers: Vec<Buyer>,
    schedule: Vec<Arrival>,
    start: Instant,
    arrived: Arc<AtomicUsize>,
) -> (Vec<Visit>, Duration) {
    let mut visits = Vec::with_capacity(schedule.len());
    for arrival in schedule {
        let intended = start + arrival.at;
        sleep_until(intended.into()).await;
        arrived.fetch_add(1, Ordering::Relaxed);
        let buyer = buyers[arrival.buyer].clone();
        visits.push(tokio::spawn(visit(Arc::clone(&shop), buyer, intended, arrival.clicks_twice)));
    }
    let offered = start.elapsed();
    let mut done = Vec::with_capacity(visits.len());
    for visit in visits {
        done.extend(visit.await);
    }
    (done, offered)
}

async fn visit(shop: Arc<Shop>, buyer: Buyer, intended: Instant, clicks_twice: bool) -> Visit {
    let clicks = async {
        if clicks_twice {
            let (first, second) = tokio::join!(click(&shop, &buyer, intended), click(&shop, &buyer, intended));
            vec![first, second]
        } else {
            vec![click(&shop, &buyer, intended).await]
        }
    };
    let answers = clicks.await;
    let mut orders: Vec<String> = answers.iter().filter_map(|a| a.order_id.clone()).collect();
    orders.sort_unstable();
    orders.dedup();
    let last = answers.into_iter().next_back().unwrap_or_else(Answer::none);
    Visit { user: buyer.user, intended, orders, last }
}

/// One click with its retries, up to the answer that the buyer takes for final.
async fn click(shop: &Shop, buyer: &Buyer, intended: Instant) -> Answer {
    let mut pause = FIRST_PAUSE;
    let first = shop.next.fetch_add(1, Ordering::Relaxed);
    let mut tried = 0;
    loop {
        // The next one at each try, as behind a load balancer that has noticed.
        let answer = ask(shop, buyer, &shop.urls[(first + tried) % shop.urls.len()]).await;
        // Fails only when the run's own end of the channel is gone, and nobody wants the answer any more.
        let _ = shop.answers.send((answer.clone(), intended.elapsed()));
        if !answer.may_retry() || tried >= shop.retries {
            return answer;
        }
        sleep(answer.retry_after.map_or(pause, Duration::from_secs).min(LONGEST_PAUSE)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        tried += 1;
    }
}

async fn ask(shop: &Shop, buyer: &Buyer, url: &str) -> Answer {
    let Ok(_connection) = shop.connections.acquire().await else { return Answer::none() };
    let mut request = shop.http.post(url).bearer_auth(&buyer.token);
    if let Some(body) = &shop.body {
        request = request.header("content-type", "application/json").body(body.clone());
    }
    let Ok(response) = request.send().await else { return Answer::none() };
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").and_then(|v| v.to_str().ok()?.parse().ok());
    match response.bytes().await {
        Ok(body) => Answer::read(status, retry_after, &body),
        Err(_) => Answer::none(),
    }
}

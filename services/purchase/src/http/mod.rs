//! The calls of buyers. Each answer is counted by its code; errors are problems (RFC 9457).

mod input;
mod problem;
mod server;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use domain::{OrderId, OrderKey, UserId, VoucherId};
use prometheus_client::metrics::gauge::Gauge;
use serde::Serialize;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::task::TaskTracker;

pub(crate) use self::{problem::Problem, server::serve};
use crate::{
    auth::Verifier,
    orders::{self, Found},
    purchase::{Answer, Purchases, Try},
    rate::RateLimit,
    servers::Servers,
    vouchers,
};

/// What the calls share.
pub(crate) struct Shop<S> {
    pub(crate) purchases: Arc<Purchases<S>>,
    pub(crate) verifier: Verifier,
    pub(crate) order_key: OrderKey,
    pub(crate) rate: RateLimit,
    /// One permit a purchase that a buyer waits for.
    pub(crate) purchases_at_once: Arc<Semaphore>,
    /// Longest wait for such a permit.
    pub(crate) patience: Duration,
    /// One permit a reading call.
    pub(crate) reads_at_once: Semaphore,
    /// Here a purchase goes on whose buyer has hung up.
    pub(crate) tasks: TaskTracker,
}

/// All calls of buyers.
pub(crate) fn router<S: Servers>(shop: Arc<Shop<S>>) -> Router {
    Router::new()
        .route("/v1/vouchers/{voucher}/orders", post(purchase::<S>))
        .route("/v1/vouchers/{voucher}/orders/{order}", get(order::<S>))
        .route("/v1/vouchers/{voucher}", get(voucher::<S>))
        .fallback(async || Problem::no_such_call())
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .with_state(shop)
}

/// A purchase that is worked on.
struct InFlight {
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
}

/// Counted until it is dropped.
struct Counted(Gauge);

impl Counted {
    fn by(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl<S: Servers> Shop<S> {
    fn user(&self, headers: &HeaderMap) -> Result<UserId, Problem> {
        self.verifier.user(headers).map_err(Problem::unauthorized)
    }

    /// Waits its turn. In a rush every call waits here, before all that costs, the token's signature first: whoever waits costs nearly nothing,
    /// whoever is sent away at once comes back at once, and the answers to that are all the service would do.
    async fn in_flight(&self) -> Result<InFlight, Problem> {
        let (room, metrics) = (&self.purchases_at_once, &self.purchases.metrics);
        let permit = match Arc::clone(room).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = Counted::by(&metrics.waiting);
                let Ok(Ok(permit)) = tokio::time::timeout(self.patience, Arc::clone(room).acquire_owned()).await else {
                    return Err(Problem::overloaded("too many purchases at this moment"));
                };
                permit
            }
        };
        Ok(InFlight { _permit: permit, _counted: Counted::by(&metrics.in_flight) })
    }

    /// Counts the answer of a call and gives it to the caller.
    fn answer(&self, call: &'static str, answer: Result<(&'static str, Response), Problem>) -> Response {
        let (code, mut response) = match answer {
            Ok(answer) => answer,
            Err(problem) => (problem.code, problem.into_response()),
        };
        self.purchases.metrics.answered(call, code);
        response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        response
    }
}

async fn purchase<S: Servers>(
    State(shop): State<Arc<Shop<S>>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        // First, so that no slow sender holds the room of others.
        let quantity = input::quantity(body).await;
        let in_flight = shop.in_flight().await?;
        let user = shop.user(&headers)?;
        let voucher = input::voucher_id(path)?;
        let key = input::idempotency_key(&headers)?;
        shop.rate.admit(&user, Instant::now()).map_err(Problem::too_many_requests)?;
        let quantity = quantity?;
        let slot = shop.purchases.unacknowledged.admit().map_err(Problem::overloaded)?;
        let order = shop.order_key.order_id(&voucher, &user, key);
        let wanted = Try { voucher, user, order, quantity };
        let (purchases, asked) = (Arc::clone(&shop.purchases), wanted.clone());
        let work = Box::pin(async move {
            let _in_flight = in_flight;
            purchases.purchase(asked, slot).await
        });
        let answer = ToItsEnd { work: Some(work), tasks: &shop.tasks }.await.map_err(|_| {
            tracing::error!(order = %wanted.order, "a purchase ended without an answer");
            Problem::internal()
        })?;
        told(&wanted, answer)
    };
    let answer = answer.await;
    shop.answer("purchase", answer)
}

/// Work that goes on in a task of its own where its caller is dropped half-way, as when a buyer hangs up.
struct ToItsEnd<'a, F: Future<Output: Send> + Send + 'static> {
    /// `None` once it has ended, be it by a panic.
    work: Option<Pin<Box<F>>>,
    tasks: &'a TaskTracker,
}

impl<F: Future<Output: Send> + Send + 'static> Future for ToItsEnd<'_, F> {
    /// An error where the work has panicked, as of a task of its own.
    type Output = thread::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        // What has panicked is never looked at again.
        match panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => {
                self.work = Some(work);
                Poll::Pending
            }
            Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for ToItsEnd<'_, F> {
    fn drop(&mut self) {
        // Without a runtime the process is ending.
        if let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) {
            self.tasks.spawn_on(work, &runtime);
        }
    }
}

/// The body of a 202.
#[derive(Serialize)]
struct Accepted<'a> {
    order_id: OrderId,
    voucher_id: &'a VoucherId,
    status: &'a str,
}

fn told(wanted: &Try, answer: Answer) -> Result<(&'static str, Response), Problem> {
    let status = match answer {
        Answer::Accepted(status) => status.map_or("pending", |s| s.as_str()),
        Answer::Refused(refusal) => return Err(Problem::refused(refusal)),
        Answer::OtherQuantity(stored) => return Err(Problem::other_quantity(stored)),
        Answer::UnknownVoucher => return Err(Problem::unknown_voucher()),
        Answer::NotReady => return Err(Problem::not_ready()),
        Answer::Away(server) => return Err(Problem::away(server)),
    };
    let location = format!("/v1/vouchers/{}/orders/{}", wanted.voucher, wanted.order);
    let body = Json(Accepted { order_id: wanted.order, voucher_id: &wanted.voucher, status });
    Ok(("accepted", (StatusCode::ACCEPTED, [(header::LOCATION, location)], body).into_response()))
}

async fn order<S: Servers>(
    State(shop): State<Arc<Shop<S>>>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        let user = shop.user(&headers)?;
        let (voucher, order) = input::order_path(path)?;
        let _permit = shop.reads_at_once.try_acquire().map_err(|_| Problem::overloaded("too many readers at this moment"))?;
        let Purchases { servers, vouchers, .. } = &*shop.purchases;
        match orders::find(servers, vouchers, &voucher, &order, &user).await {
            Found::Order(order) => Ok((order.status, Json(order).into_response())),
            Found::None => Err(Problem::unknown_order()),
            Found::AskAgain => Err(Problem::ask_again()),
            Found::Away(server) => Err(Problem::away(server)),
        }
    };
    let answer = answer.await;
    shop.answer("order", answer)
}

async fn voucher<S: Servers>(State(shop): State<Arc<Shop<S>>>, path: Result<Path<String>, PathRejection>) -> Response {
    let answer = async {
        let voucher: VoucherId = input::voucher_id(path)?;
        let _permit = shop.reads_at_once.try_acquire().map_err(|_| Problem::overloaded("too many readers at this moment"))?;
        match vouchers::view(&shop.purchases.servers, &voucher).await {
            Ok(Some(view)) => Ok(("found", Json(view).into_response())),
            Ok(None) => Err(Problem::unknown_voucher()),
            Err(error) => {
                tracing::debug!(%error, "a voucher could not be read");
                Err(Problem::away(crate::purchase::Server::Postgres))
            }
        }
    };
    let answer = answer.await;
    shop.answer("voucher", answer)
}

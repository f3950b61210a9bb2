//! The calls of buyers. Each answer is counted by its code; errors are problems (RFC 9457).

mod input;
mod problem;
mod server;
mod stream;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Instant};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use domain::{OrderKey, UserId, VoucherId};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
    /// One permit a reading call.
    pub(crate) reads_at_once: Semaphore,
    /// Purchases run here, so that a buyer who hangs up does not cut his off.
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

/// A purchase in flight, counted until it is dropped.
struct InFlight {
    _permit: OwnedSemaphorePermit,
    gauge: Gauge,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl<S: Servers> Shop<S> {
    fn user(&self, headers: &HeaderMap) -> Result<UserId, Problem> {
        self.verifier.user(headers).map_err(Problem::unauthorized)
    }

    /// A look ahead at [`Self::in_flight`]: in a rush most calls end here, so it stands before all that costs, the token's signature first.
    fn has_room(&self) -> Result<(), Problem> {
        if self.purchases_at_once.available_permits() == 0 { Err(too_many_purchases()) } else { Ok(()) }
    }

    fn in_flight(&self) -> Result<InFlight, Problem> {
        let permit = Arc::clone(&self.purchases_at_once).try_acquire_owned().map_err(|_| too_many_purchases())?;
        let gauge = self.purchases.metrics.in_flight.clone();
        gauge.inc();
        Ok(InFlight { _permit: permit, gauge })
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

fn too_many_purchases() -> Problem {
    Problem::overloaded("too many purchases at this moment")
}

async fn purchase<S: Servers>(
    State(shop): State<Arc<Shop<S>>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        shop.has_room()?;
        let user = shop.user(&headers)?;
        let voucher = input::voucher_id(path)?;
        let key = input::idempotency_key(&headers)?;
        shop.rate.admit(&user, Instant::now()).map_err(Problem::too_many_requests)?;
        let quantity = input::quantity(body).await?;
        let in_flight = shop.in_flight()?;
        let slot = shop.purchases.unacknowledged.admit().map_err(Problem::overloaded)?;
        let order = shop.order_key.order_id(&voucher, &user, key);
        let wanted = Try { voucher, user, order, quantity };
        let (purchases, spawned) = (Arc::clone(&shop.purchases), wanted.clone());
        let work = shop.tasks.spawn(async move {
            let _in_flight = in_flight;
            purchases.purchase(spawned, slot).await
        });
        let answer = work.await.map_err(|error| {
            tracing::error!(order = %wanted.order, %error, "a purchase ended without an answer");
            Problem::internal()
        })?;
        told(&wanted, answer)
    };
    let answer = answer.await;
    shop.answer("purchase", answer)
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
    let body = json!({"order_id": wanted.order, "voucher_id": wanted.voucher, "status": status});
    Ok(("accepted", (StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(body)).into_response()))
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

//! Plays the lane of one partition, each of its steps on its own.

use domain::{Event, LoggedRequest, Request, State, Timestamp, UserId, VoucherId, decide};
use events::Codec;
use infra::{
    config::Connections,
    kafka::client_config,
    postgres::lane::{LaneSession, Wanted},
};
use rdkafka::{
    ClientContext, Message,
    config::FromClientConfigAndContext,
    message::DeliveryResult,
    producer::{BaseRecord, ProducerContext, ThreadedProducer},
};
use testkit::World;
use tokio::sync::oneshot;

pub(crate) struct Lane {
    pub(crate) partition: i32,
    state: State,
    next: i64,
    session: LaneSession,
    connections: Connections,
    codec: Codec,
    producer: ThreadedProducer<Acks>,
}

/// Tells who waits for a record its offset.
struct Acks;

impl ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = Box<oneshot::Sender<i64>>;

    fn delivery(&self, result: &DeliveryResult<'_>, waiting: Self::DeliveryOpaque) {
        if let Ok(message) = result {
            let _ = waiting.send(message.offset());
        }
    }
}

impl Lane {
    pub(crate) async fn new(world: &World, partition: i32) -> Self {
        let connections = world.connections().clone();
        let session =
            LaneSession::connect(&connections, &connections.topics.requests, partition).await.expect("Postgres answers");
        let mut config = client_config(&connections);
        let config = config.set("linger.ms", "0");
        let producer = ThreadedProducer::from_config_and_context(config, Acks).expect("a producer can be made");
        Self { partition, state: State::default(), next: 0, session, connections, codec: world.codec(), producer }
    }

    async fn append(&self, topic: &str, voucher: &str, payload: &[u8]) -> i64 {
        let (report, reported) = oneshot::channel();
        let record = BaseRecord::with_opaque_to(topic, Box::new(report)).partition(self.partition).key(voucher).payload(payload);
        self.producer.send(record).map_err(|(e, _)| e).expect("the record is taken");
        reported.await.expect("the record is acknowledged")
    }

    /// Appends the request, undecided.
    pub(crate) async fn request(&self, request: Request) -> LoggedRequest {
        let bytes = self.codec.encode_request(&request).expect("it can be encoded");
        let offset = self.append(&self.connections.topics.requests, request.voucher_id.as_str(), &bytes).await;
        self.logged(offset, request)
    }

    /// A request that is in the log already.
    pub(crate) fn logged(&self, offset: i64, request: Request) -> LoggedRequest {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
        let appended_at = Timestamp(i64::try_from(now).expect("before the year 292 million"));
        LoggedRequest { partition: self.partition, offset, appended_at, request: Some(request) }
    }

    /// Decides requests in Postgres, in one transaction; publishes nothing.
    pub(crate) async fn decide(&mut self, requests: &[LoggedRequest]) -> Vec<Event> {
        let mut events = Vec::new();
        for request in requests {
            let event = decide(&self.state, request);
            self.state.evolve(&event);
            events.push(event);
        }
        let Some(last) = requests.last() else { return events };
        let transaction = self.session.begin().await.expect("Postgres answers");
        let (expected, _) = transaction.lock_and_read(&Wanted::default()).await.expect("Postgres answers");
        assert_eq!(expected, self.next, "somebody else decides");
        transaction.write(&self.state, &events, expected, last.offset + 1, &[]).await.expect("the rows can be written");
        transaction.commit().await.expect("it commits");
        self.next = last.offset + 1;
        events
    }

    /// Appends the event; gives its offset.
    pub(crate) async fn publish(&self, event: &Event) -> i64 {
        let bytes = self.codec.encode_event(event).expect("it can be encoded");
        let key = event.voucher_id.as_ref().map_or("", VoucherId::as_str);
        self.append(&self.connections.topics.events, key, &bytes).await
    }

    /// All steps for one request.
    pub(crate) async fn answer(&mut self, request: Request) -> Event {
        let logged = self.request(request).await;
        let event = self.decide(&[logged]).await.remove(0);
        self.publish(&event).await;
        event
    }

    /// Units of live orders by buyer, sorted.
    pub(crate) fn held(&self, voucher: &VoucherId) -> Vec<(UserId, i64)> {
        let of = self.state.held.iter().filter(|((v, _), _)| v == voucher);
        let mut held: Vec<_> = of.map(|((_, user), units)| (user.clone(), *units)).collect();
        held.sort();
        held
    }
}

//! Why no broker answers. A call then says only that its time is over; what the client itself met (a refused login, a certificate that it does
//! not trust) goes to its log. So a client is made to ask once more, and what it says is put into the error, with the setting to look at.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdkafka::{
    ClientContext,
    config::{FromClientConfigAndContext, RDKafkaLogLevel},
    error::{KafkaError, RDKafkaErrorCode},
    producer::{BaseProducer, DeliveryResult, ProducerContext},
};

use super::{LogError, client_config};
use crate::config::Connections;

/// For a client to try one connection and its handshakes: it is asked only where a call has failed already.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);

/// The error for brokers that did not answer.
pub(super) fn unreachable(connections: &Connections, error: &KafkaError) -> LogError {
    let (reason, remedy) = ask(connections).unwrap_or_else(|| (error.to_string(), ADDRESS));
    LogError::Unreachable { servers: connections.kafka.clone(), reason, remedy }
}

/// Brokers that demand another protocol hang up without a word.
const ADDRESS: &str = "DOORBUSTER_KAFKA, DOORBUSTER_KAFKA_SECURITY and that the brokers run";
const LOGIN: &str = "DOORBUSTER_KAFKA_USER, DOORBUSTER_KAFKA_PASSWORD and DOORBUSTER_KAFKA_MECHANISM";
const CERTIFICATE: &str = "DOORBUSTER_KAFKA_CA and DOORBUSTER_KAFKA_SECURITY";

/// What the first failed connection says, and the setting that it speaks of.
fn ask(connections: &Connections) -> Option<(String, &'static str)> {
    let heard = Heard::default();
    let client = BaseProducer::from_config_and_context(&client_config(connections), heard.clone()).ok()?;
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        client.poll(POLL);
        if let Some((code, reason)) = heard.first.lock().clone() {
            return Some((reason, remedy(code)));
        }
    }
    None
}

fn remedy(code: RDKafkaErrorCode) -> &'static str {
    match code {
        RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => LOGIN,
        RDKafkaErrorCode::SSL => CERTIFICATE,
        _ => ADDRESS,
    }
}

#[derive(Clone, Default)]
struct Heard {
    first: Arc<Mutex<Option<(RDKafkaErrorCode, String)>>>,
}

impl ClientContext for Heard {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        // That all brokers are down only follows from what was heard before.
        if let Some(code) = error.rdkafka_error_code().filter(|code| *code != RDKafkaErrorCode::AllBrokersDown) {
            self.first.lock().get_or_insert_with(|| (code, reason.to_owned()));
        }
    }
}

impl ProducerContext for Heard {
    type DeliveryOpaque = ();
    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

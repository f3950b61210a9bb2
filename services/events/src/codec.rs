//! Bytes to requests and events, and back.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use domain::{Event, Request};
use tokio::sync::Mutex;

use crate::schema::{EVENTS, Ours, REQUESTS, Reading};
use crate::wire::{Wire, WireEvent, WireRequest};
use crate::{Draft, Registry, RegistryError, Topics};

/// Why bytes are no request or event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No reader will ever make sense of them: this is a dead letter.
    #[error("unreadable: {0}")]
    Unreadable(String),
    /// Written with a schema this process has not seen: [`Codec::learn`] it and decode again.
    #[error("schema id {0} is not known yet")]
    UnknownSchema(u32),
    /// A newer version wrote it: who decides or settles must stop, mere readers skip and count it.
    #[error("kind {0:?} is not known to this version")]
    UnknownKind(String),
}

/// Why a value could not be written; a defect, not a matter of input.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot encode: {0}")]
pub struct EncodeError(pub String);

/// Why the schema ids could not be looked up at start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The registry does not have our schema under this subject.
    #[error("subject {subject} does not have this version's schema: run `doorbuster topics apply --apply`")]
    NotRegistered { subject: String },
}

/// How often a schema id that the registry answers 404 for is asked again before it counts as unknown: a registry that has just
/// started, or a replica that lags, may answer 404 for what it has.
const ASKS: u32 = 3;

/// Pause between those questions.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// How long an id that no schema has is not asked for again, so that a topic full of such records costs the registry next to
/// nothing. Long enough for that, short enough that a schema registered later is found.
const MISSING_FOR: Duration = Duration::from_secs(60);

/// How many such ids are remembered; past it all are forgotten and asked for again.
const MAX_MISSING: usize = 1_024;

/// Encodes and decodes records in the Confluent wire format (0x00, schema id, Avro datum). Cheap to clone; clones share what they learn.
#[derive(Clone)]
pub struct Codec {
    shared: Arc<Shared>,
}

struct Shared {
    requests_id: u32,
    events_id: u32,
    registry: Option<Registry>,
    known: RwLock<HashMap<u32, Known>>,
    /// Locked for as long as the registry is asked: one question at a time, and whoever waited finds the answer.
    asking: Mutex<()>,
}

/// What the registry said about an id.
enum Known {
    Schema(Arc<Learned>),
    /// At this instant no schema had it.
    Missing(Instant),
}

/// What one schema id means on each topic.
struct Learned {
    requests: Reading,
    events: Reading,
}

impl Learned {
    fn from_text(schema: &str) -> Self {
        Self { requests: Reading::of(schema, &REQUESTS), events: Reading::of(schema, &EVENTS) }
    }
}

impl Codec {
    /// Looks up the ids of this version's schemas. Registers nothing.
    pub async fn connect(registry: &Registry, topics: &Topics) -> Result<Self, ConnectError> {
        let requests_id = own_id(registry, &topics.requests, crate::REQUEST_SCHEMA).await?;
        let events_id = own_id(registry, &topics.events, crate::EVENT_SCHEMA).await?;
        Ok(Self::new(requests_id, events_id, Some(registry.clone())))
    }

    /// A codec that needs no registry: ids 1 (requests) and 2 (events). For tests and tools that read what they wrote.
    pub fn offline() -> Self {
        Self::new(1, 2, None)
    }

    fn new(requests_id: u32, events_id: u32, registry: Option<Registry>) -> Self {
        let (known, asking) = Default::default();
        let codec = Self { shared: Arc::new(Shared { requests_id, events_id, registry, known, asking }) };
        codec.teach(requests_id, crate::REQUEST_SCHEMA);
        codec.teach(events_id, crate::EVENT_SCHEMA);
        codec
    }

    pub fn encode_request(&self, request: &Request) -> Result<Vec<u8>, EncodeError> {
        encode(self.shared.requests_id, &REQUESTS, &WireRequest::from(request))
    }

    pub fn encode_event(&self, event: &Event) -> Result<Vec<u8>, EncodeError> {
        encode(self.shared.events_id, &EVENTS, &WireEvent::from(event))
    }

    /// A symbol of a newer version, be it the kind or a word in the body (who cancels), is [`DecodeError::UnknownKind`].
    pub fn decode_request(&self, bytes: &[u8]) -> Result<Request, DecodeError> {
        let (id, datum) = split(bytes)?;
        self.learned(id)?.requests.read(&REQUESTS, datum, |wire: WireRequest| wire.try_into())
    }

    /// As [`Codec::decode_request`], for records that no lane takes: the fields as they were written, be their values none that the domain
    /// accepts.
    pub fn draft_request(&self, bytes: &[u8]) -> Result<Draft, DecodeError> {
        let (id, datum) = split(bytes)?;
        self.learned(id)?.requests.read(&REQUESTS, datum, |wire: WireRequest| Ok(Draft::of(wire)))
    }

    /// `partition`: where the record was found; the record itself does not say.
    ///
    /// A symbol of a newer version is [`DecodeError::UnknownKind`], be it the kind or a word in the body (a reason): who settles or
    /// folds could only make up what it means, and who merely reads skips the record as one of a newer kind.
    pub fn decode_event(&self, bytes: &[u8], partition: i32) -> Result<Event, DecodeError> {
        let (id, datum) = split(bytes)?;
        self.learned(id)?.events.read(&EVENTS, datum, |wire: WireEvent| wire.into_event(partition))
    }

    /// Asks the registry for a schema id that decoding did not know: from then on decoding does. One call asks once (a few times for a 404);
    /// callers pause between calls that fail. What was written with an id that the registry does not have is unreadable.
    ///
    /// An answer counts only while the registry gives our own schemas under our own ids: one that was emptied, restored or mistaken
    /// for another knows nothing about the ids in our topics.
    pub async fn learn(&self, id: u32) -> Result<(), RegistryError> {
        let _one_at_a_time = self.shared.asking.lock().await;
        if !matches!(self.learned(id), Err(DecodeError::UnknownSchema(_))) {
            return Ok(());
        }
        if let Some(registry) = &self.shared.registry {
            self.registry_is_ours(registry).await?;
            for ask in 0..ASKS {
                if ask > 0 {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                }
                if let Some(schema) = registry.schema(id).await? {
                    self.teach(id, &schema);
                    return Ok(());
                }
            }
        }
        let mut known = self.shared.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.values().filter(|known| matches!(known, Known::Missing(_))).count() >= MAX_MISSING {
            known.retain(|_, known| matches!(known, Known::Schema(_)));
        }
        known.insert(id, Known::Missing(Instant::now()));
        Ok(())
    }

    /// Takes a schema id's meaning from the caller instead of a registry: for tools that read with schemas kept elsewhere.
    pub fn teach(&self, id: u32, schema: &str) {
        let learned = Arc::new(Learned::from_text(schema));
        self.shared.known.write().unwrap_or_else(PoisonError::into_inner).insert(id, Known::Schema(learned));
    }

    fn learned(&self, id: u32) -> Result<Arc<Learned>, DecodeError> {
        match self.shared.known.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
            Some(Known::Schema(learned)) => Ok(learned.clone()),
            Some(Known::Missing(since)) if since.elapsed() < MISSING_FOR => {
                Err(DecodeError::Unreadable(format!("no schema has id {id}")))
            }
            _ => Err(DecodeError::UnknownSchema(id)),
        }
    }

    async fn registry_is_ours(&self, registry: &Registry) -> Result<(), RegistryError> {
        for (id, ours) in [(self.shared.requests_id, &REQUESTS), (self.shared.events_id, &EVENTS)] {
            if !registry.schema(id).await?.is_some_and(|text| ours.is(&text)) {
                let reason = format!("it does not have our own schema under id {id} any more");
                return Err(RegistryError::Unavailable { url: registry.url(), reason });
            }
        }
        Ok(())
    }
}

async fn own_id(registry: &Registry, topic: &str, schema: &str) -> Result<u32, ConnectError> {
    let subject = Topics::subject(topic);
    registry.id_of(&subject, schema).await?.ok_or(ConnectError::NotRegistered { subject })
}

/// First byte of a record in the Confluent wire format; four bytes of schema id follow, big-endian.
const MAGIC: u8 = 0;

/// A datum as a record that was written with this schema id.
pub fn framed(id: u32, datum: &[u8]) -> Vec<u8> {
    [&[MAGIC], &id.to_be_bytes()[..], datum].concat()
}

fn encode<W: Wire>(id: u32, ours: &Ours, wire: &W) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(256);
    bytes.push(MAGIC);
    bytes.extend(id.to_be_bytes());
    ours.write(&mut bytes, wire).map_err(|e| EncodeError(e.to_string()))?;
    Ok(bytes)
}

fn split(bytes: &[u8]) -> Result<(u32, &[u8]), DecodeError> {
    match bytes {
        [MAGIC, a, b, c, d, datum @ ..] => Ok((u32::from_be_bytes([*a, *b, *c, *d]), datum)),
        [MAGIC, ..] => Err(DecodeError::Unreadable(format!("{} bytes are too few for a record", bytes.len()))),
        [first, ..] => Err(DecodeError::Unreadable(format!("the first byte is {first} instead of 0"))),
        [] => Err(DecodeError::Unreadable("no bytes".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No registry listens there, so whoever asks it gets an error at once.
    fn codec() -> Codec {
        Codec::new(1, 2, Some(Registry::new("http://127.0.0.1:1", None).unwrap()))
    }

    #[tokio::test]
    async fn a_missing_id_is_asked_for_again_after_a_while() {
        let codec = codec();
        let fresh = Instant::now();
        let Some(stale) = fresh.checked_sub(MISSING_FOR) else { return };
        codec.shared.known.write().unwrap().extend([(7, Known::Missing(fresh)), (8, Known::Missing(stale))]);
        assert!(matches!(codec.learned(7), Err(DecodeError::Unreadable(_))) && codec.learn(7).await.is_ok());
        assert!(matches!(codec.learned(8), Err(DecodeError::UnknownSchema(8))) && codec.learn(8).await.is_err());
    }

    #[tokio::test]
    async fn a_codec_without_a_registry_knows_what_it_was_taught() {
        let codec = Codec::offline();
        codec.learn(7).await.unwrap();
        assert!(matches!(codec.learned(7), Err(DecodeError::Unreadable(_))));
        codec.teach(7, crate::EVENT_SCHEMA);
        assert!(codec.learned(7).is_ok());
    }
}

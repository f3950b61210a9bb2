//! The topics of a deployment: what they must look like, the check at every start, and the plan by which `doorbuster topics apply` makes or grows them.
//!
//! The log is the truth, so a topic that would forget records (retention, compaction), date them by somebody else's clock (CreateTime) or
//! answer a request on another partition (counts that differ) is refused. Settings of a topic that exists are never changed here: what such a
//! topic has lost does not come back, so a person decides.

use std::fmt;

use futures::executor::block_on;
use rdkafka::{
    admin::{
        AdminClient, AdminOptions, ConfigResource, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication, TopicResult,
    },
    config::FromClientConfigAndContext,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::Metadata,
};

use super::{CALL_TIMEOUT, ClientLog, LogError, MAX_DEAD_LETTER_BYTES, MAX_RECORD_BYTES, client_config, refused::unreachable};
use crate::config::Connections;

/// What `order-requests` and `order-events` must be set to, and why.
const LOG_SETTINGS: [(&str, &str, &str); 4] = [
    ("cleanup.policy", "delete", "compaction would keep only the last record of a voucher"),
    ("retention.ms", "-1", "the history would be deleted"),
    ("message.timestamp.type", "LogAppendTime", "decisions depend on the broker's clock"),
    ("unclean.leader.election.enable", "false", "a broker that lags would lead and cut acknowledged records off"),
];
const DEAD_LETTER_SETTINGS: [(&str, &str, &str); 2] = [
    ("cleanup.policy", "delete", "compaction would keep only the last record of a voucher"),
    ("retention.ms", "-1", "records that could not be read would be deleted"),
];
const MAX_BYTES: &str = "max.message.bytes";
const MIN_IN_SYNC: &str = "min.insync.replicas";

/// From this many brokers on, topics get [`REPLICATION`] replicas of which [`REPLICATION`] - 1 must acknowledge: one broker may fail.
const REPLICATION: usize = 3;
/// Partitions of `order-dead-letters`: they are few, and one partition keeps them in one order.
const DEAD_LETTER_PARTITIONS: i32 = 1;
/// Most partitions of a topic; a lane each, so more than this is a slip of the finger.
const MAX_PARTITIONS: i32 = 1000;
/// Looks at what `apply_topics` has made until every broker knows it: 50 times with 200 ms between.
const SETTLE_TRIES: u32 = 50;
const SETTLE_PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// One thing that `topics apply` would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicStep {
    Create { topic: String, partitions: i32, replication: i32, settings: Vec<(&'static str, String)> },
    Grow { topic: String, from: i32, to: i32 },
}

impl fmt::Display for TopicStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { topic, partitions, replication, settings } => {
                write!(f, "create {topic}: partitions={partitions}, replication={replication}")?;
                settings.iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
            }
            Self::Grow { topic, from, to } => write!(f, "grow {topic}: {from} -> {to} partitions"),
        }
    }
}

/// What `topics apply` would do, in order; one line a step. Empty: everything is as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPlan {
    pub steps: Vec<TopicStep>,
    /// Partitions of `order-requests` and `order-events` afterwards.
    pub partitions: i32,
}

impl fmt::Display for TopicPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().enumerate().try_for_each(|(n, step)| if n == 0 { write!(f, "{step}") } else { write!(f, "\n{step}") })
    }
}

/// Checks that both topics exist with equal partition counts, delete policy, unlimited retention and LogAppendTime, and that
/// dead letters can be kept; gives the partition count. Refuses with what it found and what to do (`doorbuster topics apply`).
pub fn check_topics(connections: &Connections) -> Result<i32, LogError> {
    let topics = &connections.topics;
    let cluster = Cluster::look(connections)?;
    let requests = cluster.existing(&topics.requests)?;
    let events = cluster.existing(&topics.events)?;
    cluster.existing(&topics.dead_letters)?;
    if requests != events {
        return Err(LogError::Topic {
            topic: topics.events.clone(),
            problem: format!("{events} partitions, but {} has {requests}", topics.requests),
            remedy: "run `doorbuster topics apply --apply`, which grows the smaller one".to_owned(),
        });
    }
    cluster.check_settings()?;
    Ok(requests)
}

/// How many partitions a topic has.
pub fn partition_count(connections: &Connections, topic: &str) -> Result<i32, LogError> {
    let admin = admin(connections)?;
    let metadata = admin.inner().fetch_metadata(Some(topic), CALL_TIMEOUT).map_err(|e| unanswered(connections, e))?;
    partitions_in(&metadata, topic)?.ok_or_else(|| missing(topic))
}

/// What is to be done so that all topics exist, with `partitions` partitions (`None`: as many as there are, else the default).
/// Refuses to shrink, and to go on beside a topic with wrong settings.
pub fn plan_topics(connections: &Connections, partitions: Option<i32>) -> Result<TopicPlan, LogError> {
    let topics = &connections.topics;
    let cluster = Cluster::look(connections)?;
    cluster.check_settings()?;
    let (events, requests) = (cluster.partitions(&topics.events), cluster.partitions(&topics.requests));
    let there = events.max(requests);
    let wanted = partitions.or(there).unwrap_or(events::DEFAULT_PARTITIONS);
    if !(1..=MAX_PARTITIONS).contains(&wanted) || there.is_some_and(|there| wanted < there) {
        return Err(LogError::Topic {
            topic: topics.requests.clone(),
            problem: format!("{wanted} partitions are wanted, {} are there", there.unwrap_or(0)),
            remedy: format!("ask for {} to {MAX_PARTITIONS}: a topic can grow, not shrink", there.unwrap_or(1)),
        });
    }
    // Events first: a request must never arrive on a partition whose answer has no place.
    let mut steps = Vec::new();
    for (topic, there) in [(&topics.events, events), (&topics.requests, requests)] {
        match there {
            None => steps.push(cluster.create(topic, wanted)),
            Some(from) if from < wanted => steps.push(TopicStep::Grow { topic: topic.clone(), from, to: wanted }),
            Some(_) => {}
        }
    }
    if cluster.partitions(&topics.dead_letters).is_none() {
        steps.insert(0, cluster.create(&topics.dead_letters, DEAD_LETTER_PARTITIONS));
    }
    Ok(TopicPlan { steps, partitions: wanted })
}

/// Does what the plan says, in its order, and returns when the check of the topics passes. Stops at the first step that fails; planning
/// again shows what is left. A topic that somebody else has made meanwhile is checked like one that was there.
pub fn apply_topics(connections: &Connections, plan: &TopicPlan) -> Result<(), LogError> {
    let admin = admin(connections)?;
    let options = AdminOptions::new().request_timeout(Some(CALL_TIMEOUT * 2)).operation_timeout(Some(CALL_TIMEOUT));
    for step in &plan.steps {
        let results = match step {
            TopicStep::Create { topic, partitions, replication, settings } => {
                let new = NewTopic::new(topic, *partitions, TopicReplication::Fixed(*replication));
                let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
                block_on(admin.create_topics([&new], &options))
            }
            TopicStep::Grow { topic, to, .. } => {
                let count = usize::try_from(*to).map_err(|_| KafkaError::AdminOpCreation(format!("{to} partitions")))?;
                block_on(admin.create_partitions([&NewPartitions::new(topic, count)], &options))
            }
        };
        let results = results.map_err(|e| unanswered(connections, e))?;
        results.into_iter().try_for_each(|result| done(step, result))?;
    }
    settled(connections, plan.partitions)
}

fn done(step: &TopicStep, result: TopicResult) -> Result<(), LogError> {
    match result {
        Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
        Err((topic, code)) => Err(LogError::Topic {
            topic,
            problem: format!("the brokers refused: {step} ({code})"),
            remedy: "look at the brokers' logs, then run `doorbuster topics apply --apply` again".to_owned(),
        }),
    }
}

/// Waits until the brokers' metadata shows what was done.
fn settled(connections: &Connections, partitions: i32) -> Result<(), LogError> {
    for _ in 1..SETTLE_TRIES {
        if matches!(check_topics(connections), Ok(found) if found == partitions) {
            return Ok(());
        }
        std::thread::sleep(SETTLE_PAUSE);
    }
    check_topics(connections).map(drop)
}

/// What the brokers say about our topics at one moment.
struct Cluster<'a> {
    connections: &'a Connections,
    metadata: Metadata,
    settings: Vec<(String, ConfigResource)>,
}

impl<'a> Cluster<'a> {
    fn look(connections: &'a Connections) -> Result<Self, LogError> {
        let topics = &connections.topics;
        let admin = admin(connections)?;
        let metadata = admin.inner().fetch_metadata(None, CALL_TIMEOUT).map_err(|e| unanswered(connections, e))?;
        let mut cluster = Self { connections, metadata, settings: Vec::new() };
        for topic in [&topics.requests, &topics.events, &topics.dead_letters] {
            if partitions_in(&cluster.metadata, topic)?.is_none() {
                continue;
            }
            let options = AdminOptions::new().request_timeout(Some(CALL_TIMEOUT));
            let described = block_on(admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options));
            for resource in described.map_err(|e| unanswered(connections, e))? {
                cluster.settings.push((topic.clone(), resource.map_err(KafkaError::AdminOp)?));
            }
        }
        Ok(cluster)
    }

    fn partitions(&self, topic: &str) -> Option<i32> {
        partitions_in(&self.metadata, topic).ok().flatten()
    }

    fn existing(&self, topic: &str) -> Result<i32, LogError> {
        self.partitions(topic).ok_or_else(|| missing(topic))
    }

    fn setting(&self, topic: &str, name: &str) -> Option<&str> {
        let (_, resource) = self.settings.iter().find(|(of, _)| of == topic)?;
        resource.get(name)?.value.as_deref()
    }

    /// Refuses the first wrong setting of a topic that exists.
    fn check_settings(&self) -> Result<(), LogError> {
        let topics = &self.connections.topics;
        let needed: [(&String, &[_]); 3] =
            [(&topics.requests, &LOG_SETTINGS), (&topics.events, &LOG_SETTINGS), (&topics.dead_letters, &DEAD_LETTER_SETTINGS)];
        for (topic, settings) in needed {
            if self.partitions(topic).is_none() {
                continue;
            }
            for (name, needed, why) in settings {
                let found = self.setting(topic, name).unwrap_or("unknown");
                if found != *needed {
                    return Err(self.wrong(topic, name, found, needed, why));
                }
            }
            self.warn_of_few_replicas(topic);
        }
        self.check_sizes()
    }

    fn check_sizes(&self) -> Result<(), LogError> {
        let topics = &self.connections.topics;
        let size = |topic: &str| self.setting(topic, MAX_BYTES).and_then(|bytes| bytes.parse::<usize>().ok());
        match (size(&topics.requests), size(&topics.dead_letters)) {
            (Some(requests), Some(letters)) if letters <= requests => Err(self.wrong(
                &topics.dead_letters,
                MAX_BYTES,
                &letters.to_string(),
                &requests.saturating_mul(2).to_string(),
                &format!("a record of {} ({requests} bytes) and its headers would not fit", topics.requests),
            )),
            _ => Ok(()),
        }
    }

    fn wrong(&self, topic: &str, name: &str, found: &str, needed: &str, why: &str) -> LogError {
        LogError::Topic {
            topic: topic.to_owned(),
            problem: format!("{name} is {found}, but {needed} is needed: {why}"),
            remedy: format!(
                "make sure that nothing was lost, then set it: kafka-configs.sh --bootstrap-server {} --alter --topic {topic} --add-config {name}={needed}",
                self.connections.kafka
            ),
        }
    }

    fn warn_of_few_replicas(&self, topic: &str) {
        let Some(found) = self.metadata.topics().iter().find(|t| t.name() == topic) else { return };
        let replicas = found.partitions().iter().map(|p| p.replicas().len()).min().unwrap_or(0);
        let in_sync = self.setting(topic, MIN_IN_SYNC).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        if self.metadata.brokers().len() >= REPLICATION && (replicas < REPLICATION || in_sync < REPLICATION - 1) {
            tracing::warn!(
                topic,
                replicas,
                in_sync,
                "acknowledged records may be lost with one broker: {REPLICATION} replicas and {MIN_IN_SYNC}={} are right",
                REPLICATION - 1
            );
        }
    }

    fn create(&self, topic: &str, partitions: i32) -> TopicStep {
        let is_dead_letters = topic == self.connections.topics.dead_letters;
        let (replication, in_sync) =
            if self.metadata.brokers().len() >= REPLICATION { (REPLICATION as i32, REPLICATION - 1) } else { (1, 1) };
        let max_bytes = if is_dead_letters { MAX_DEAD_LETTER_BYTES } else { MAX_RECORD_BYTES };
        let settings = LOG_SETTINGS.iter().map(|(name, value, _)| (*name, (*value).to_owned()));
        let settings = settings.chain([(MIN_IN_SYNC, in_sync.to_string()), (MAX_BYTES, max_bytes.to_string())]).collect();
        TopicStep::Create { topic: topic.to_owned(), partitions, replication, settings }
    }
}

fn admin(connections: &Connections) -> Result<AdminClient<ClientLog>, LogError> {
    Ok(AdminClient::from_config_and_context(&client_config(connections), ClientLog)?)
}

fn partitions_in(metadata: &Metadata, topic: &str) -> Result<Option<i32>, LogError> {
    let Some(found) = metadata.topics().iter().find(|t| t.name() == topic) else { return Ok(None) };
    match found.error().map(RDKafkaErrorCode::from) {
        None => Ok(i32::try_from(found.partitions().len()).ok().filter(|count| *count > 0)),
        Some(RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(None),
        Some(other) => Err(KafkaError::MetadataFetch(other).into()),
    }
}

fn missing(topic: &str) -> LogError {
    LogError::Topic {
        topic: topic.to_owned(),
        problem: "it does not exist".to_owned(),
        remedy: "run `doorbuster topics apply --apply`, or check DOORBUSTER_TOPIC_PREFIX".to_owned(),
    }
}

fn unanswered(connections: &Connections, error: KafkaError) -> LogError {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::BrokerTransportFailure | Code::AllBrokersDown | Code::OperationTimedOut | Code::Resolve) => {
            unreachable(connections, &error)
        }
        _ => error.into(),
    }
}

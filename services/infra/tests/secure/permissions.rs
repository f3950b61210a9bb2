//! A sale on a Kafka where each service logs in as itself and may do only what `docs/CONFIGURATION.md` lists. The commands come from there.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use devstack::{
    kafka::{KafkaOptions, inner_endpoint, start, tool},
    redis,
};
use infra::{config::Connections, kafka::client_config};
use rdkafka::{
    ClientContext,
    config::FromClientConfigAndContext,
    error::RDKafkaErrorCode,
    producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext},
};
use testkit::{Service, World, buyers, plan, sale};

use crate::{Authority, PASSWORD, PATIENCE, connections};

const SERVICES: [&str; 3] = ["orders", "compensation", "purchase"];

#[test]
fn each_service_may_do_what_it_must_and_only_the_lanes_write_events() {
    let authority = Authority::new();
    let users = SERVICES.map(|name| (name.to_owned(), PASSWORD.to_owned())).to_vec();
    let broker = start(KafkaOptions { secured: Some(authority.secured()), users, ..Default::default() }).expect("Kafka starts");
    let redis = redis::start(Default::default()).expect("Redis starts");
    let inner = inner_endpoint(&broker).expect("it has one");
    let world = World::builder().kafka(&inner).redis(redis.endpoint()).build();
    allow(&inner, &world.connections().prefix);

    let ca = authority.file();
    let as_user = |user: &'static str| {
        [
            ("DOORBUSTER_KAFKA", broker.endpoint()),
            ("DOORBUSTER_KAFKA_SECURITY", "sasl_ssl"),
            ("DOORBUSTER_KAFKA_CA", &ca),
            ("DOORBUSTER_KAFKA_USER", user),
            ("DOORBUSTER_KAFKA_PASSWORD", PASSWORD),
            ("DOORBUSTER_KAFKA_MECHANISM", "PLAIN"),
        ]
    };
    let services = SERVICES.map(|name| world.launch_service(name, name, &as_user(name)));
    services.iter().for_each(Service::wait_ready);
    let voucher = world.voucher_id();
    world.open(&voucher, world.terms(20, 1, 1));
    let names = (0..30).map(|n| format!("buyer-{n}"));
    sale(plan(services[2].url(), &voucher, Duration::from_secs(1)), buyers(names)).join().expect("the buyers come");
    world.wait_settled(&[&voucher]);
    assert_eq!(world.assert_audit().vouchers[0].sold, 20);

    let topics = &world.connections().topics;
    let refused = [
        ("purchase", &topics.events),
        ("purchase", &topics.dead_letters),
        ("compensation", &topics.events),
        ("compensation", &topics.dead_letters),
        ("orders", &topics.requests),
    ];
    for (user, topic) in refused {
        let login = connections(&as_user(user)).expect("the settings are complete");
        assert_eq!(write(&login, topic), Err(RDKafkaErrorCode::TopicAuthorizationFailed), "{user} writes {topic}");
    }
}

/// Runs the documented commands, with the names of this deployment.
fn allow(broker: &str, prefix: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIGURATION.md");
    let text = fs::read_to_string(path).expect("the document is there");
    let commands: Vec<&str> = text.lines().filter(|line| line.starts_with("--allow-principal")).collect();
    assert_eq!(commands.len(), 6, "{commands:?}");
    let run = |command: &str| {
        let command = command.replace(" order-", &format!(" {prefix}-order-")).replace(" doorbuster-", &format!(" {prefix}-"));
        let begin = ["--bootstrap-server", broker, "--add", "--force"];
        let args: Vec<String> = begin.into_iter().chain(command.split(' ')).map(str::to_owned).collect();
        tool("org.apache.kafka.tools.AclCommand", &args).unwrap_or_else(|error| panic!("{command}: {error}"));
    };
    // Side by side, two at a time: each waits for a JVM to start.
    thread::scope(|scope| {
        for half in commands.chunks(commands.len().div_ceil(2)) {
            scope.spawn(move || half.iter().for_each(|command| run(command)));
        }
    });
}

/// What becomes of a record.
fn write(connections: &Connections, topic: &str) -> Result<(), RDKafkaErrorCode> {
    let told = Told::default();
    let producer = BaseProducer::from_config_and_context(&client_config(connections), told.clone()).expect("a producer");
    producer.send(BaseRecord::<str, str>::to(topic).partition(0).payload("x")).map_err(|(error, _)| error).expect("room");
    producer.flush(PATIENCE).expect("an answer in time");
    told.0.lock().expect("no panic").take().expect("a delivery report")
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Option<Result<(), RDKafkaErrorCode>>>>);

impl ClientContext for Told {}

impl ProducerContext for Told {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let outcome = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
        };
        *self.0.lock().expect("no panic") = Some(outcome);
    }
}

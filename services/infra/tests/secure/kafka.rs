use devstack::kafka::{KafkaOptions, inner_endpoint, start, tool};
use infra::{
    config::Connections,
    kafka::{LogError, apply_topics, check_topics, plan_topics},
};

use crate::{Authority, PASSWORD, PATIENCE, assert_names, connections};

#[test]
fn kafka_over_tls_with_a_login() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let broker = start(KafkaOptions { secured: Some(authority.secured()), ..KafkaOptions::default() }).expect("Kafka starts");
    let (address, ca, other) = (broker.endpoint(), authority.file(), stranger.file());
    let with = |vars: &[(&str, &str)]| {
        let vars: Vec<_> = [("DOORBUSTER_KAFKA", address)].iter().chain(vars).copied().collect();
        connections(&vars).expect("the settings are complete")
    };
    let login = |ca: &str, password: &str, mechanism: &str| {
        with(&[
            ("DOORBUSTER_KAFKA_SECURITY", "sasl_ssl"),
            ("DOORBUSTER_KAFKA_CA", ca),
            ("DOORBUSTER_KAFKA_USER", "admin"),
            ("DOORBUSTER_KAFKA_PASSWORD", password),
            ("DOORBUSTER_KAFKA_MECHANISM", mechanism),
        ])
    };
    let right = login(&ca, PASSWORD, "PLAIN");
    let made = || apply_topics(&right, &plan_topics(&right, Some(1))?);
    testkit::wait_until(PATIENCE, "topics made with the right settings", || made().is_ok());

    let scram = login(&ca, PASSWORD, "SCRAM-SHA-512");
    assert_names(&silence(&scram), &["DOORBUSTER_KAFKA_PASSWORD", "DOORBUSTER_KAFKA_MECHANISM", "SCRAM-SHA-512"]);
    make_scram_user(&inner_endpoint(&broker).expect("it has one"));
    testkit::wait_until(PATIENCE, "the new user", || check_topics(&scram).is_ok());

    assert_names(&silence(&login(&ca, "wrong-one", "PLAIN")), &["DOORBUSTER_KAFKA_PASSWORD", "uthentication"]);
    assert_names(&silence(&login(&other, PASSWORD, "PLAIN")), &["DOORBUSTER_KAFKA_CA", "certificate"]);
    let ssl_only = with(&[("DOORBUSTER_KAFKA_SECURITY", "ssl"), ("DOORBUSTER_KAFKA_CA", &ca)]);
    for wrong in [with(&[]), ssl_only] {
        assert_names(&silence(&wrong), &["DOORBUSTER_KAFKA_SECURITY"]);
    }
}

/// What is said when no broker lets us in.
fn silence(connections: &Connections) -> String {
    match check_topics(connections) {
        Err(error @ LogError::Unreachable { .. }) => error.to_string(),
        other => panic!("nobody should have answered, but {other:?}"),
    }
}

fn make_scram_user(broker: &str) {
    let settings = format!("SCRAM-SHA-512=[password={PASSWORD}]");
    let args =
        ["--bootstrap-server", broker, "--alter", "--entity-type", "users", "--entity-name", "admin", "--add-config", &settings];
    tool("kafka.admin.ConfigCommand", &args.map(str::to_owned)).expect("Kafka makes the user");
}

//! The check at every start, and the plan that makes the topics.

use crate::support::{PATIENCE, connections, connections_to, make_topic};
use infra::{
    config::Connections,
    kafka::{LogError, apply_topics, check_topics, partition_count, plan_topics},
};

const RIGHT: [(&str, &str); 3] =
    [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("message.timestamp.type", "LogAppendTime")];

/// The three topics; `wrong` overwrites one setting of one topic.
fn make_topics(connections: &Connections, wrong: Option<(&str, &str, &str)>) {
    let topics = &connections.topics;
    for (topic, bytes) in [(&topics.requests, "1048576"), (&topics.events, "1048576"), (&topics.dead_letters, "2097152")] {
        let mut settings = RIGHT.to_vec();
        settings.push(("max.message.bytes", bytes));
        if let Some((_, name, value)) = wrong.filter(|(of, ..)| of == topic) {
            settings.retain(|(other, _)| *other != name);
            settings.push((name, value));
        }
        make_topic(connections, topic, 2, &settings);
    }
}

fn refusal(connections: &Connections) -> String {
    match check_topics(connections) {
        Err(error @ LogError::Topic { .. }) => error.to_string(),
        other => panic!("the topics should have been refused, but the check said {other:?}"),
    }
}

#[test]
fn what_the_plan_makes_passes_the_check_and_grows() {
    let connections = connections();
    let topics = &connections.topics;
    let plan = plan_topics(&connections, Some(2)).expect("the broker answers");
    let lines: Vec<String> = plan.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{plan}");
    for topic in [&topics.requests, &topics.events] {
        let line = lines.iter().find(|line| line.contains(topic.as_str())).expect("a line for each topic");
        let said = "partitions=2, replication=1, cleanup.policy=delete, retention.ms=-1, message.timestamp.type=LogAppendTime, \
                    unclean.leader.election.enable=false";
        assert!(line.contains(said), "{line}");
    }
    apply_topics(&connections, &plan).expect("the topics can be made");
    assert_eq!(check_topics(&connections).expect("they are right"), 2);
    assert_eq!(partition_count(&connections, &topics.dead_letters).expect("it is there"), 1);
    assert_eq!(plan_topics(&connections, None).expect("the broker answers").steps, []);

    let grow = plan_topics(&connections, Some(5)).expect("the broker answers");
    assert_eq!(
        grow.to_string(),
        format!("grow {}: 2 -> 5 partitions\ngrow {}: 2 -> 5 partitions", topics.events, topics.requests),
        "events come first"
    );
    apply_topics(&connections, &grow).expect("topics can grow");
    assert_eq!(check_topics(&connections).expect("they are right"), 5);

    let shrink = plan_topics(&connections, Some(3)).map_err(|e| e.to_string());
    assert!(
        shrink.as_ref().is_err_and(|e| e.contains("3 partitions are wanted, 5 are there") && e.contains("not shrink")),
        "{shrink:?}"
    );
    assert!(plan_topics(&connections, Some(0)).is_err());
}

#[test]
fn a_plan_applied_twice_does_no_harm() {
    let connections = connections();
    let plan = plan_topics(&connections, Some(1)).expect("the broker answers");
    apply_topics(&connections, &plan).expect("the topics can be made");
    apply_topics(&connections, &plan).expect("they are as they should be");
}

#[test]
fn a_missing_topic_is_named_with_the_remedy() {
    let connections = connections();
    let message = refusal(&connections);
    assert!(message.contains(&connections.topics.requests) && message.contains("does not exist"), "{message}");
    assert!(message.contains("doorbuster topics apply"), "{message}");
}

#[test]
fn each_wrong_setting_is_refused_with_what_was_found_and_what_to_do() {
    let cases = [
        ("events", "cleanup.policy", "compact"),
        ("requests", "cleanup.policy", "compact"),
        ("events", "cleanup.policy", "compact,delete"),
        ("requests", "retention.ms", "604800000"),
        ("events", "retention.ms", "604800000"),
        ("requests", "message.timestamp.type", "CreateTime"),
        ("events", "message.timestamp.type", "CreateTime"),
        ("requests", "unclean.leader.election.enable", "true"),
        ("events", "unclean.leader.election.enable", "true"),
        ("dead-letters", "retention.ms", "604800000"),
        ("dead-letters", "max.message.bytes", "1048576"),
    ];
    for (of, name, value) in cases {
        let connections = connections();
        let topic = format!("{}-order-{of}", connections.prefix);
        make_topics(&connections, Some((&topic, name, value)));
        testkit::wait_until(PATIENCE, "all topics", || match check_topics(&connections) {
            Err(LogError::Topic { problem, .. }) => !problem.contains("not exist"),
            _ => true,
        });
        let message = refusal(&connections);
        assert!(message.contains(&topic) && message.contains(&format!("{name} is {value}")), "{message}");
        assert!(message.contains(&format!("--add-config {name}=")), "{message}");
        // Nothing is made or grown beside a topic that may have lost records.
        assert!(plan_topics(&connections, Some(9)).is_err_and(|e| e.to_string() == message));
    }
}

#[test]
fn unequal_partition_counts_are_refused_and_mended_by_the_plan() {
    let connections = connections();
    let topics = &connections.topics;
    make_topic(&connections, &topics.requests, 3, &RIGHT);
    make_topic(&connections, &topics.events, 2, &RIGHT);
    make_topic(&connections, &topics.dead_letters, 1, &[("retention.ms", "-1"), ("max.message.bytes", "2097152")]);
    testkit::wait_until(PATIENCE, "all topics", || !refusal(&connections).contains("not exist"));
    let message = refusal(&connections);
    assert!(message.contains("2 partitions, but") && message.contains("has 3") && message.contains("topics apply"), "{message}");
    let plan = plan_topics(&connections, None).expect("the broker answers");
    assert_eq!(plan.to_string(), format!("grow {}: 2 -> 3 partitions", topics.events));
    apply_topics(&connections, &plan).expect("topics can grow");
    assert_eq!(check_topics(&connections).expect("they are right"), 3);
}

#[test]
fn a_broker_that_makes_topics_by_itself_gets_no_chance_to() {
    let properties = vec![("auto.create.topics.enable".to_owned(), "true".to_owned())];
    let broker =
        devstack::kafka::start(devstack::kafka::KafkaOptions { properties, ..Default::default() }).expect("Kafka starts");
    let connections = connections_to(broker.endpoint());
    for _ in 0..2 {
        let message = refusal(&connections);
        assert!(message.contains("does not exist"), "{message}");
    }
    assert!(partition_count(&connections, &connections.topics.requests).is_err_and(|e| e.to_string().contains("does not exist")));
}

#[test]
fn a_broker_that_is_not_there_is_named() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port can be had").to_string();
    let message = check_topics(&connections_to(&nobody)).map_err(|e| e.to_string()).err().unwrap_or_default();
    assert!(message.contains(&nobody) && message.contains("DOORBUSTER_KAFKA"), "{message}");
}

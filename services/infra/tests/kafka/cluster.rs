//! Three brokers: the topics get their copies, a dead leader takes nothing along, and a broker that comes back is one of them again.

use std::{thread, time::Duration};

use devstack::{
    Server,
    kafka::{ClusterOptions, start_cluster},
};
use infra::{
    config::Connections,
    kafka::{apply_topics, check_topics, client_config, plan_topics},
};
use rdkafka::{
    metadata::Metadata,
    producer::{BaseProducer, BaseRecord, Producer},
};

use crate::support::{PATIENCE, admin, connections_to};

/// For the others to notice a dead broker (9 s by default) and to let it in again, on a busy machine.
const TAKEOVER: Duration = Duration::from_secs(60);

fn metadata(connections: &Connections) -> Option<Metadata> {
    admin(connections).inner().fetch_metadata(Some(&connections.topics.events), PATIENCE).ok()
}

/// Leader, copies and copies that are up to date of partition 0 of `order-events`.
fn copies(connections: &Connections) -> Option<(i32, usize, usize)> {
    let metadata = metadata(connections)?;
    let partition = metadata.topics().first()?.partitions().iter().find(|partition| partition.id() == 0)?;
    Some((partition.leader(), partition.replicas().len(), partition.isr().len()))
}

fn write(connections: &Connections) {
    let mut config = client_config(connections);
    config.set("enable.idempotence", "true").set("message.timeout.ms", TAKEOVER.as_millis().to_string());
    let producer: BaseProducer = config.create().expect("a producer can be made");
    producer
        .send(BaseRecord::<str, str>::to(&connections.topics.events).partition(0).payload("x"))
        .map_err(|(error, _)| error)
        .expect("room");
    producer.flush(TAKEOVER).expect("the record is acknowledged");
}

fn high_watermark(connections: &Connections) -> i64 {
    admin(connections).inner().fetch_watermarks(&connections.topics.events, 0, PATIENCE).expect("there is a leader").1
}

#[test]
fn three_brokers_lose_nothing_with_one_of_them() {
    let servers = start_cluster(ClusterOptions::default()).expect("three brokers start");
    let endpoints: Vec<&str> = servers.iter().map(Server::endpoint).collect();
    let connections = connections_to(&endpoints.join(","));
    let plan = plan_topics(&connections, Some(1)).expect("the brokers answer");
    for line in plan.to_string().lines() {
        assert!(line.contains("replication=3") && line.contains("min.insync.replicas=2"), "{line}");
    }
    apply_topics(&connections, &plan).expect("the topics can be made");
    testkit::wait_until(PATIENCE, "three copies", || {
        copies(&connections).is_some_and(|(_, copies, in_sync)| (copies, in_sync) == (3, 3))
    });
    write(&connections);

    let (leader, ..) = copies(&connections).expect("the brokers answer");
    let dead = &servers[usize::try_from(leader - 1).expect("brokers count from 1")];
    dead.kill();
    testkit::wait_until(TAKEOVER, "another leader", || copies(&connections).is_some_and(|(now, ..)| now > 0 && now != leader));
    write(&connections);
    assert_eq!(high_watermark(&connections), 2);
    assert_eq!(check_topics(&connections).expect("the topics are right"), 1);

    dead.restart().expect("the broker is let in again");
    testkit::wait_until(TAKEOVER, "all copies up to date", || copies(&connections).is_some_and(|(.., in_sync)| in_sync == 3));

    // After a crash of all nobody is ready alone: they need a majority.
    servers.iter().for_each(Server::kill);
    thread::scope(|scope| {
        let restarts: Vec<_> = servers.iter().map(|server| scope.spawn(|| server.restart())).collect();
        restarts.into_iter().for_each(|restart| restart.join().expect("no panic").expect("the broker is let in again"));
    });
    testkit::wait_until(TAKEOVER, "a leader", || copies(&connections).is_some_and(|(leader, ..)| leader > 0));
    assert_eq!(high_watermark(&connections), 2);
}

#[test]
fn clients_are_sent_to_the_advertised_port() {
    let advertised = Some(vec![1]);
    let servers = start_cluster(ClusterOptions { brokers: 1, advertised, ..Default::default() }).expect("a broker starts");
    let found = metadata(&connections_to(servers[0].endpoint())).expect("the broker answers");
    assert_eq!(found.brokers().iter().map(|broker| broker.port()).collect::<Vec<_>>(), [1]);
}

//! What the network between the services and one server can do, by the proxies in front of them.

use std::time::Duration;

use rand::{Rng, rngs::SmallRng};
use testkit::Mode;

use super::draw;
use crate::{
    fault::{Fault, Kind, Make, at_once, kind, seconds, steps},
    site::{Proxied, Site},
};

/// Which connections are meant.
#[derive(Clone, Copy)]
enum To {
    OneBroker,
    AllBrokers,
    Redis,
    Postgres,
    Registry,
}

impl To {
    fn name(self) -> &'static str {
        match self {
            To::OneBroker => "one broker",
            To::AllBrokers => "all brokers",
            To::Redis => "Redis",
            To::Postgres => "Postgres",
            To::Registry => "the registry",
        }
    }

    fn of(self, site: &Site, which: impl Fn(usize) -> usize) -> Vec<&Proxied> {
        let servers = &site.servers;
        match self {
            To::OneBroker => vec![&servers.kafka[which(servers.kafka.len())]],
            To::AllBrokers => servers.kafka.iter().collect(),
            To::Redis => vec![&servers.redis],
            To::Postgres => vec![&servers.postgres],
            To::Registry => vec![&servers.registry],
        }
    }
}

const HOLD: (Duration, Duration) = (seconds(3), seconds(15));

const KAFKA: &str = "socket time-out 10 s + session time-out 6 s + rebalance 3 s + a lane's recovery 5 s + back-off 2 s";
const REDIS: &str = "reconnection 1 s + a repair's wait 3 s + the backlog";
const POSTGRES: &str = "connect time-out 3 s + time-out of a silent connection 5 s + back-off 2 s + a lane's recovery 5 s";
const REGISTRY: &str = "nothing waits for it but a start, which is tried twice a second: 5 s";

pub(crate) const KINDS: &[Kind] = &[
    kafka("kafka-one-refused", |rng| network(To::OneBroker, rng, |_| Mode::Refuse)),
    kafka("kafka-one-silent", |rng| network(To::OneBroker, rng, |_| Mode::Silent)),
    kafka("kafka-one-held", |rng| network(To::OneBroker, rng, |_| Mode::Hold)),
    kafka("kafka-one-replies-lost", |rng| network(To::OneBroker, rng, |_| Mode::DropReplies)),
    kafka("kafka-one-delayed", |rng| network(To::OneBroker, rng, delay)),
    kafka("kafka-one-slow", |rng| network(To::OneBroker, rng, slow)),
    kafka("kafka-all-refused", |rng| network(To::AllBrokers, rng, |_| Mode::Refuse)),
    kafka("kafka-all-silent", |rng| network(To::AllBrokers, rng, |_| Mode::Silent)),
    kafka("kafka-all-held", |rng| network(To::AllBrokers, rng, |_| Mode::Hold)),
    kafka("kafka-all-replies-lost", |rng| network(To::AllBrokers, rng, |_| Mode::DropReplies)),
    kafka("kafka-all-delayed", |rng| network(To::AllBrokers, rng, delay)),
    kafka("kafka-all-slow", |rng| network(To::AllBrokers, rng, slow)),
    kafka("kafka-cut", |_| cut(To::AllBrokers)),
    redis("redis-refused", |rng| network(To::Redis, rng, |_| Mode::Refuse)),
    redis("redis-silent", |rng| network(To::Redis, rng, |_| Mode::Silent)),
    redis("redis-held", |rng| network(To::Redis, rng, |_| Mode::Hold)),
    redis("redis-replies-lost", |rng| network(To::Redis, rng, |_| Mode::DropReplies)),
    redis("redis-delayed", |rng| network(To::Redis, rng, delay)),
    redis("redis-slow", |rng| network(To::Redis, rng, slow)),
    redis("redis-cut", |_| cut(To::Redis)),
    postgres("postgres-refused", |rng| network(To::Postgres, rng, |_| Mode::Refuse)),
    postgres("postgres-silent", |rng| network(To::Postgres, rng, |_| Mode::Silent)),
    postgres("postgres-held", |rng| network(To::Postgres, rng, |_| Mode::Hold)),
    postgres("postgres-replies-lost", |rng| network(To::Postgres, rng, |_| Mode::DropReplies)),
    postgres("postgres-delayed", |rng| network(To::Postgres, rng, delay)),
    postgres("postgres-slow", |rng| network(To::Postgres, rng, slow)),
    postgres("postgres-cut", |_| cut(To::Postgres)),
    registry("registry-refused", |rng| network(To::Registry, rng, |_| Mode::Refuse)),
    registry("registry-silent", |rng| network(To::Registry, rng, |_| Mode::Silent)),
    registry("registry-slow", |rng| network(To::Registry, rng, slow)),
];

const fn kafka(name: &'static str, make: Make) -> Kind {
    kind(name, 30, KAFKA, HOLD, &["kafka"], make)
}

const fn redis(name: &'static str, make: Make) -> Kind {
    kind(name, 15, REDIS, HOLD, &["redis"], make)
}

const fn postgres(name: &'static str, make: Make) -> Kind {
    kind(name, 20, POSTGRES, HOLD, &["postgres"], make)
}

const fn registry(name: &'static str, make: Make) -> Kind {
    kind(name, 10, REGISTRY, HOLD, &["registry"], make)
}

fn network(to: To, rng: &mut SmallRng, mode: fn(&mut SmallRng) -> Mode) -> Fault {
    let mode = mode(rng);
    let which = draw(rng);
    let chosen = which.clone();
    let set = move |site: &mut Site| {
        to.of(site, &which).iter().for_each(|proxied| proxied.proxy.set(mode));
        Ok(())
    };
    let open = move |site: &mut Site, ()| {
        to.of(site, &chosen).iter().for_each(|proxied| proxied.proxy.set(Mode::Open));
        Ok(())
    };
    steps(format!("network to {}: {mode:?}", to.name()), set, open)
}

fn cut(to: To) -> Fault {
    at_once(format!("network to {}: all connections reset", to.name()), move |site| {
        to.of(site, |_| 0).iter().for_each(|proxied| proxied.proxy.cut());
        Ok(())
    })
}

/// From one that nobody minds to one beyond Redis' short time-out of 200 ms.
fn delay(rng: &mut SmallRng) -> Mode {
    Mode::Delay(Duration::from_millis(rng.random_range(20..=400)))
}

/// From 4 to 200 kB/s a connection: an answer about all topics takes a second or more at the lower end.
fn slow(rng: &mut SmallRng) -> Mode {
    Mode::Slow(rng.random_range(4_000..=200_000))
}

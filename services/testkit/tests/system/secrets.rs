//! Secrets stay secret: whatever a log level, a failure or a metric shows, it is no password, no key and no token.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use devstack::redis;
use testkit::{World, buy, token, wait_until};

use crate::names;

const REDIS_PASSWORD: &str = "correct-horse-of-redis";
const POSTGRES_PASSWORD: &str = "battery-staple-of-postgres";

#[test]
fn no_password_key_or_token_is_in_any_log_or_metric() {
    let _alone = crate::ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = redis::start(redis::RedisOptions::default()).unwrap();
    let address = server.endpoint().trim_start_matches("redis://").to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(format!("CONFIG SET requirepass {REDIS_PASSWORD}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
    let world = World::builder().redis(&format!("redis://:{REDIS_PASSWORD}@{address}")).build();
    // Its Postgres asks for no password, so any will do.
    let postgres = world.connections().postgres.replacen('@', &format!(":{POSTGRES_PASSWORD}@"), 1);
    assert!(postgres.contains(POSTGRES_PASSWORD), "{postgres}");
    let secrets = |more: &[&str]| -> Vec<String> {
        let vars = world.env_vars();
        let keys = ["DOORBUSTER_JWT_SECRET", "DOORBUSTER_ORDER_KEY"];
        let keys = vars.into_iter().filter(|(name, _)| keys.contains(&name.as_str())).map(|(_, value)| value);
        let mut all: Vec<String> = keys.chain([REDIS_PASSWORD, POSTGRES_PASSWORD].map(str::to_owned)).collect();
        all.extend(more.iter().map(|secret| (*secret).to_owned()));
        assert!(all.len() >= 4);
        all
    };
    let loud = [("DOORBUSTER_LOG", "trace"), ("DOORBUSTER_POSTGRES", postgres.as_str())];
    let services = ["orders", "compensation", "purchase"].map(|name| world.launch_service(name, name, &loud));
    services.iter().for_each(testkit::Service::wait_ready);
    let [.., purchase] = &services;
    let voucher = world.voucher_id();
    world.open(&voucher, world.terms(3, 1, 1));

    // Good tokens, one that is none, and one in the wrong place; then a purchase without Redis, so that there are errors to tell.
    let url = purchase.url();
    assert!(names(3).all(|user| buy(&url, &voucher, &user).is_accepted()));
    let forged = format!("{}x", token("forger"));
    let place = format!("{url}/v1/vouchers/{voucher}/orders");
    let statuses = testkit::block_on(async {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        let with_forged = client.post(&place).bearer_auth(&forged).send().await.unwrap().status().as_u16();
        let as_key = client.post(&place).bearer_auth(token("x")).header("idempotency-key", "é").send().await.unwrap();
        [with_forged, as_key.status().as_u16()]
    });
    assert_eq!(statuses, [401, 400]);
    world.wait_settled(&[&voucher]);
    server.kill();
    let answer = buy(&url, &voucher, "without-redis");
    assert_eq!(answer.kind, "gate_away", "{answer:?}");
    wait_until(Duration::from_secs(30), "purchase to be unready", || !purchase.is_ready());

    // Tokens differ in their signature and claims; their first part is the same for all.
    let signatures: Vec<String> =
        [forged, token("without-redis")].iter().map(|t| t[t.rfind('.').unwrap()..].to_owned()).collect();
    let first_parts = "eyJ0eXAiOiJKV1Qi";
    let secrets = secrets(&[first_parts, &signatures[0], "Bearer ey"]);
    for service in &services {
        let log = std::fs::read_to_string(service.process.log()).unwrap();
        assert!(log.contains("TRACE") || log.contains("DEBUG"), "{} is not loud", service.process.name());
        let metrics = service.admin_port().map(|port| devstack::http_get(port, "/metrics").unwrap().1).unwrap_or_default();
        for secret in &secrets {
            let found = log.lines().chain(metrics.lines()).find(|line| line.contains(secret.as_str()));
            assert_eq!(found, None, "{} tells {secret:?}", service.process.name());
        }
        let users = metrics.lines().find(|line| line.contains("buyer-") || line.contains(voucher.as_str()));
        assert_eq!(users, None, "users and vouchers are no labels");
    }

    // A wrong setting is named without its value.
    let vars = [
        ("DOORBUSTER_REDIS", format!("redis://:{REDIS_PASSWORD}@{address}")),
        ("DOORBUSTER_REDIS", format!("redis://:{REDIS_PASSWORD}@no port")),
        // Orders: purchase opens without Postgres.
        ("DOORBUSTER_POSTGRES", format!("postgresql://u:{POSTGRES_PASSWORD}@127.0.0.1:no-port/none")),
        ("DOORBUSTER_JWT_SECRET", "too-short-a-secret".to_owned()),
        ("DOORBUSTER_ORDER_KEY", "no-hexadecimal-key-at-all".to_owned()),
    ];
    let secrets = [REDIS_PASSWORD, POSTGRES_PASSWORD, "too-short-a-secret", "no-hexadecimal-key-at-all"];
    for (i, (name, value)) in vars.iter().enumerate() {
        let more = [(*name, value.as_str()), ("DOORBUSTER_LOG", "trace"), ("DOORBUSTER_PURCHASE_START_MS", "500")];
        let service = if *name == "DOORBUSTER_POSTGRES" { "orders" } else { "purchase" };
        let service = world.launch_service(service, &format!("wrong-{i}"), &more);
        let mut log = String::new();
        wait_until(Duration::from_secs(60), name, || {
            log = std::fs::read_to_string(service.process.log()).unwrap_or_default();
            log.contains(name)
        });
        assert!(secrets.iter().all(|secret| !log.contains(secret)), "{name}: {log}");
    }
}

//! Dead letters sent again: each kind of them, with and without units left, killed half-way, and never round in circles.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
    time::Duration,
};

use domain::{CancelledBy, Event, EventBody, OrderStatus, Request, RequestBody, Terms, Timestamp, VoucherId};
use events::{dead_letter::Place, framed, redrive};
use infra::{kafka::client_config, redis::Store};
use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer},
};
use serde_json::Value;
use testkit::{World, binary, block_on, buy, doorbuster, order_request, voucher_request, wait_until};

use crate::Shop;

const PATIENCE: Duration = Duration::from_secs(30);

/// No schema has this id.
const UNKNOWN_ID: u32 = 999_999;

/// The request's datum, without header.
fn datum(world: &World, request: &Request) -> Vec<u8> {
    world.codec().encode_request(request).unwrap()[5..].to_vec()
}

/// Writes a record that nobody can read, and waits for its dead letter. Gives where that stands.
fn unreadable(world: &World, bytes: &[u8], headers: &[(String, Vec<u8>)]) -> String {
    let (topics, letters) = (&world.connections().topics, letters(world));
    let producer: BaseProducer = client_config(world.connections()).create().unwrap();
    let owned = headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: Some(value) }));
    let record = BaseRecord::to(&topics.requests).partition(1).key("k").payload(bytes).headers(owned);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(PATIENCE).unwrap();
    wait_until(PATIENCE, "a dead letter", || self::letters(world) == letters + 1);
    format!("0:{}", world.records(&topics.dead_letters, 0).pop().unwrap().offset)
}

fn letters(world: &World) -> usize {
    world.records(&world.connections().topics.dead_letters, 0).len()
}

/// The order of a user whose record nobody can read as it is: where its dead letter stands.
pub(crate) fn lost_order(world: &World, voucher: &VoucherId, user: &str) -> String {
    let request = order_request(voucher, world.order_id(voucher, user, None), user, 1);
    unreadable(world, &framed(UNKNOWN_ID, &datum(world, &request)), &[])
}

/// Runs `dlq redrive ... --json`: exit code, and for each dead letter outcome and answer.
fn redriven(world: &World, args: &[&str]) -> (i32, Vec<(String, String)>) {
    let (code, text) = doorbuster(world, &[&["dlq", "redrive", "--json"], args].concat());
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let word = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let lines: Vec<_> = lines.map(|line| (word(&line, "outcome"), word(&line, "answer"))).collect();
    assert!(!lines.is_empty(), "{code}: {text}");
    (code, lines)
}

fn outcomes(lines: &[(String, String)]) -> Vec<&str> {
    lines.iter().map(|(outcome, _)| outcome.as_str()).collect()
}

/// All that a redrive could change: the ends of the logs, and the voucher in Redis.
fn standing(world: &World, voucher: &VoucherId) -> String {
    let topics = &world.connections().topics;
    let ends = [&topics.requests, &topics.events, &topics.dead_letters].map(|topic| world.ends(topic, 0));
    let here = [&topics.requests, &topics.events].map(|topic| world.ends(topic, 1));
    format!("{ends:?} {here:?} {:?}", world.in_redis(voucher))
}

/// The dead letters that the requests of partition 1 were made of, in order.
fn origins(world: &World) -> Vec<Place> {
    let requests = world.records(&world.connections().topics.requests, 1);
    requests.iter().filter_map(|record| redrive::letter(&record.headers)).collect()
}

fn answer_to(world: &World, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
    world.events(1).into_iter().map(|(event, _)| event).rfind(fits).unwrap_or_else(|| panic!("no {what}"))
}

#[test]
fn each_kind_of_dead_letter_is_redriven_or_refused_by_name() {
    let shop = Shop::new();
    let (world, voucher) = (&shop.world, shop.open(10));
    let event_id = u32::from_be_bytes(world.codec().encode_event(&world.events(1)[0].0).unwrap()[1..5].try_into().unwrap());
    // Each way to break a record, and whether something reads it after all.
    type Break = (&'static str, bool, fn(Vec<u8>, u32) -> Vec<u8>);
    let breaks: [Break; 6] = [
        ("an unknown id", true, |datum, _| framed(UNKNOWN_ID, &datum)),
        ("no magic byte", true, |datum, _| framed(1, &datum)[1..].to_vec()),
        ("no header", true, |datum, _| datum),
        ("the id of events", true, |datum, event_id| framed(event_id, &datum)),
        ("cut off", false, |datum, _| framed(UNKNOWN_ID, &datum[..datum.len() - 1])),
        ("foreign text", false, |_, _| b"{\"order\": 1}".to_vec()),
    ];
    let (mut expected, mut titles) = (Vec::new(), BTreeSet::new());
    for (n, (name, is_readable, spoil)) in breaks.into_iter().enumerate() {
        let title = format!("published with {name}");
        let terms = Terms { title: title.clone(), ..world.terms(5, 1, 1) };
        let stock = RequestBody::StockChanged { delta: 1, expected_terms_version: n as i64 + 1 };
        let user = format!("buyer-{n}");
        let requests = [
            voucher_request(&world.voucher_id(), RequestBody::VoucherPublished(terms)),
            voucher_request(&voucher, stock),
            order_request(&voucher, world.order_id(&voucher, &user, None), &user, 1),
        ];
        for request in requests {
            unreadable(world, &spoil(datum(world, &request), event_id), &[]);
            expected.push(is_readable);
        }
        titles.extend(is_readable.then_some(title));
    }
    let before = standing(world, &voucher);
    let words = |going: &'static str| expected.iter().map(move |ok| if *ok { going } else { "refused" }).collect::<Vec<_>>();
    let (code, plan) = redriven(world, &[]);
    assert_eq!((code, outcomes(&plan)), (1, words("would_redrive")), "{plan:#?}");
    assert!(plan[1].1.contains("VoucherChanged") && plan[2].1.contains("takes its units"), "{plan:#?}");
    assert_eq!(standing(world, &voucher), before, "a plan changes nothing");

    let (code, done) = redriven(world, &["--apply", "--rate", "1000", "--batch", "4", "--by", "ann", "--reason", "mended"]);
    assert_eq!((code, outcomes(&done)), (1, words("redriven")), "{done:#?}");
    assert!(done[17].1.contains("no known schema"), "{done:#?}");
    world.wait_settled(&[&voucher]);
    let audit = world.assert_audit();
    let sold = audit.vouchers.iter().find(|v| v.voucher == voucher).map(|v| (v.total, v.sold));
    assert_eq!((sold, audit.vouchers.len()), (Some((14, 4)), 5));
    let opened = world.fold().vouchers.into_values().map(|v| v.terms.title).collect::<BTreeSet<_>>();
    assert!(opened.is_superset(&titles), "{opened:?}");
    let (_, told) = doorbuster(world, &["tail", "requests", "--voucher", voucher.as_str()]);
    let told: Value = serde_json::from_str(told.lines().rfind(|line| line.starts_with('{')).unwrap()).unwrap();
    assert_eq!(
        ["times", "by", "reason"].map(|name| told["headers"][format!("doorbuster.redrive.{name}")].as_str().unwrap_or("?")),
        ["1", "ann", "mended"]
    );

    let before = standing(world, &voucher);
    let (code, again) = redriven(world, &["--apply"]);
    assert_eq!((code, outcomes(&again)), (1, words("nothing_to_do")), "{again:#?}");
    assert_eq!(standing(world, &voucher), before, "nothing is sent twice");

    for (args, code, words) in [
        (&["list", "--cause", "nonsense"][..], 0, "no dead letter fits"),
        (&["stats", "--since", "+1h"], 0, "no dead letter fits"),
        (&["redrive", "--topic", "nowhere", "--apply"], 0, "no dead letter fits"),
        (&["list", "0:99999", "--json"], 2, "no dead letter 0:99999 fits"),
        (&["redrive", "--as-schema", "99", "--apply"], 2, "has no version 99"),
    ] {
        let (found, text) = doorbuster(world, &[&["dlq"], args].concat());
        assert!(found == code && text.contains(words), "{args:?}: {found}: {text}");
    }
    let (code, stats) = doorbuster(world, &["dlq", "stats", "--json"]);
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let counts: Vec<_> =
        stats.as_array().unwrap().iter().map(|c| (c["cause"].as_str().unwrap(), c["count"].as_u64().unwrap())).collect();
    assert!(code == 0 && counts.contains(&("no schema has id N", 9)), "{counts:?}");
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 18);
    let (_, few) = doorbuster(world, &["dlq", "list", "--json", "--cause", "no schema", "--partition", "1", "--offset", "1-3"]);
    assert_eq!(few.lines().count(), 3, "{few}");
    let (code, shown) = doorbuster(world, &["dlq", "show", "0:0"]);
    let parts = ["__streams.errors.offset: 1", "00 00 0f 42 3f", "without the first 5 bytes: {", "published with an unknown id"];
    assert!(code == 0 && parts.iter().all(|part| shown.contains(part)), "{shown}");
    let (code, missing) = doorbuster(world, &["dlq", "show", "0:999"]);
    assert!(code == 2 && missing.contains("no dead letter 0:999"), "{code}: {missing}");
}

#[test]
fn an_order_takes_units_again_or_is_refused_and_never_overtakes_its_own_fate() {
    let shop = Shop::new();
    let (world, voucher) = (&shop.world, shop.open(3));
    let id = |user: &str| world.order_id(&voucher, user, None);
    let apply = |letter: &str| redriven(world, &[letter, "--apply"]);

    // The reservation of ann was lost, and there are units; that of ben is there, with an instant of its own.
    let [ann, ben] = ["ann", "ben"].map(|user| lost_order(world, &voucher, user));
    let reserved_at = block_on(async {
        let store = Store::connect(&world.connections().redis).await.unwrap();
        let user = domain::UserId::parse("ben").unwrap();
        store.reserve(&voucher, &id("ben"), &user, 1, "t").await.unwrap();
        store.reservation(&voucher, &id("ben")).await.unwrap().unwrap().requested_at
    });
    let (code, lines) = apply(&ann);
    assert!(code == 0 && lines[0].1.starts_with("OrderConfirmed"), "{lines:?}");
    let (code, lines) = apply(&ben);
    assert!(code == 0 && lines[0].1.starts_with("OrderConfirmed"), "{lines:?}");
    let ben = answer_to(world, "order of ben", |event| event.body.order_id() == Some(id("ben")));
    let EventBody::OrderConfirmed { requested_at, .. } = ben.body else { panic!("{ben:?}") };
    assert_eq!(requested_at, reserved_at);

    // The order of cid was bought and cancelled since; dan's, too, but nobody has decided that yet; for eve nothing will be left.
    let [cid, dan, eve] = ["cid", "dan", "eve"].map(|user| lost_order(world, &voucher, user));
    let second = order_request(&voucher, world.order_id(&voucher, "ann", Some("again")), "ann", 1);
    let second = unreadable(world, &framed(UNKNOWN_ID, &datum(world, &second)), &[]);
    let cancel = |user: &str| {
        let body = RequestBody::CancellationRequested { order_id: id(user), by: CancelledBy::Buyer };
        world.append_request(1, &voucher_request(&voucher, body))
    };
    assert!(buy(&shop.url(), &voucher, "cid").is_accepted());
    let offset = cancel("cid");
    world.event_of(1, offset);
    world.wait_settled(&[&voucher]);
    let (code, lines) = apply(&cid);
    assert!(code == 0 && lines[0].0 == "nothing_to_do" && lines[0].1.contains("cancelled"), "{lines:?}");

    shop.orders.process.pause().unwrap();
    world.append_request(1, &order_request(&voucher, id("dan"), "dan", 1));
    cancel("dan");
    let (code, lines) = redriven(world, &[&dan, "--apply", "--patience", "0s"]);
    assert!(code == 2 && lines[0].1.contains("not decided"), "{lines:?}");
    shop.orders.process.resume().unwrap();
    world.wait_settled(&[&voucher]);
    let fate = answer_to(world, "answer to dan", |event| event.body.order_id() == Some(id("dan")));
    assert!(matches!(fate.body, EventBody::RequestRepeated { status: OrderStatus::Cancelled, .. }), "{fate:?}");

    let (code, lines) = apply(&second);
    assert!(code == 1 && lines[0].1.contains("all units that one may"), "{lines:?}");
    assert!(buy(&shop.url(), &voucher, "last").is_accepted());
    world.wait_settled(&[&voucher]);
    let before = standing(world, &voucher);
    for args in [&[eve.as_str()][..], &[&eve, "--apply"]] {
        let (code, lines) = redriven(world, args);
        assert!(code == 1 && lines[0].0 == "refused" && lines[0].1.contains("sold out"), "{lines:?}");
    }
    assert_eq!(standing(world, &voucher), before, "what the gate refuses is not sent");
    assert_eq!(world.assert_audit().vouchers[0].sold, 3);
}

#[test]
fn a_redrive_that_was_killed_goes_on_and_nothing_goes_round_in_circles() {
    let shop = Shop::new();
    let (world, voucher) = (&shop.world, shop.open(10));
    for n in 1..=3 {
        lost_order(world, &voucher, &format!("buyer-{n}"));
        let more = voucher_request(&voucher, RequestBody::StockChanged { delta: 1, expected_terms_version: n });
        unreadable(world, &framed(UNKNOWN_ID, &datum(world, &more)), &[]);
    }
    let mut command = Command::new(binary());
    command.args(["dlq", "redrive", "--apply", "--rate", "1"]).envs(world.env_vars()).stdout(Stdio::null());
    let mut killed = command.spawn().unwrap();
    wait_until(PATIENCE, "two redriven requests", || origins(world).len() >= 2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let sent = origins(world).len();
    assert!(sent < 6, "it was through before it was killed");
    // A server notices by itself that the one who held its lock is gone.
    wait_until(PATIENCE, "the lock of the killed one to be free", || {
        doorbuster(world, &["dlq", "redrive", "0:0", "--apply"]).0 == 0
    });
    let (code, lines) = redriven(world, &["--apply"]);
    assert_eq!((code, lines.len()), (0, 6), "{lines:?}");
    assert!(lines[..sent].iter().all(|(outcome, _)| outcome == "nothing_to_do"), "{lines:?}");
    assert!(lines[5].0 == "redriven", "{lines:?}");
    let all = origins(world);
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (6, 6), "each once: {all:?}");
    world.wait_settled(&[&voucher]);
    let at_rest = &world.assert_audit().vouchers[0];
    assert_eq!((at_rest.total, at_rest.sold), (13, 3));

    // Redriven before, and unreadable again.
    let [twice, thrice] = [2, 3].map(|times| {
        let place = Place { topic: "order-dead-letters".into(), partition: 0, offset: 1 };
        let before = redrive::Redrive { letter: place, times, by: "x".into(), reason: None, edited: Vec::new() };
        let pause = RequestBody::VoucherPaused { expected_terms_version: i64::from(times) + 2 };
        let bytes = framed(UNKNOWN_ID, &datum(world, &voucher_request(&voucher, pause)));
        unreadable(world, &bytes, &before.headers())
    });
    let (code, lines) = redriven(world, &[&twice, &thrice, "--apply"]);
    assert_eq!((code, outcomes(&lines)), (1, vec!["redriven", "refused"]), "{lines:?}");
    assert!(lines[1].1.contains("redriven 3 times"), "{lines:?}");
    let (code, lines) = redriven(world, &[&twice, "--again", "--apply"]);
    assert!(code == 1 && lines[0].1.contains("redriven 3 times"), "{lines:?}");

    let published = mended(world, &voucher);
    world.wait_settled(&[&voucher, &published]);
    world.assert_audit();
}

/// Text that is set before the request is judged.
fn mended(world: &World, voucher: &VoucherId) -> VoucherId {
    let published = world.voucher_id();
    let terms = Terms { title: "Tyop".into(), begins_at: Timestamp(1), ..world.terms(1, 1, 1) };
    let publication = voucher_request(&published, RequestBody::VoucherPublished(terms));
    let tyop = unreadable(world, &framed(UNKNOWN_ID, &datum(world, &publication)), &[]);
    let resume = voucher_request(voucher, RequestBody::VoucherResumed { expected_terms_version: 5 });
    let mut broken = world.codec().encode_request(&resume).unwrap();
    let at = broken.windows(2).position(|two| two == &voucher.as_str().as_bytes()[..2]).unwrap();
    broken[at] = b'{';
    let broken = unreadable(world, &broken, &[]);
    for (set, why) in [("color=red", "no field color"), ("total=2", "total is no text"), ("voucher_id={", "a voucher id is")] {
        let (code, lines) = redriven(world, &[&tyop, "--apply", "--set", set]);
        assert!(code == 1 && lines[0].1.contains(why), "{lines:?}");
    }
    let (code, lines) = redriven(world, &[&tyop, "--apply", "--as-schema", "1", "--set", "title=Typo"]);
    assert!(code == 0 && lines[0].1.starts_with("VoucherOpened"), "{lines:?}");
    assert_eq!(world.fold().vouchers[&published].terms.title, "Typo");
    let (code, lines) = redriven(world, &[&broken, "--apply"]);
    assert!(code == 1 && lines[0].1.contains("a voucher id is"), "{lines:?}");
    let (code, lines) = redriven(world, &[&broken, "--apply", "--set", &format!("voucher_id={voucher}")]);
    assert!(code == 0 && lines[0].1.starts_with("VoucherChanged"), "{lines:?}");
    published
}

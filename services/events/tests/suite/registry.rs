//! A registry that is slow, broken, empty or replaced, played by a small HTTP server; and a real one.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use domain::Event;
use events::{Codec, ConnectError, DecodeError, EVENT_SCHEMA, REQUEST_SCHEMA, Registry, RegistryError, Topics};
use serde_json::{Value, json};

use crate::records;

/// How the registry behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Well,
    Says(u16),
    /// Takes the question and says nothing until the client gives up.
    Silent,
    /// Answers 200 with this text.
    Garbage(&'static str),
    /// Closes the connection.
    HangsUp,
    /// Answers nobody but user `u` with the password `p@ss`.
    WantsLogin,
}

/// A registry that holds schemas by id and counts what it is asked.
#[derive(Clone)]
struct Fake {
    url: String,
    mood: Arc<Mutex<Mood>>,
    schemas: Arc<Mutex<HashMap<u32, String>>>,
    asked: Arc<AtomicUsize>,
}

impl Fake {
    /// Starts one that has our two schemas under ids 41 and 42. Its threads end with the test's process.
    fn start() -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let fake = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            mood: Arc::new(Mutex::new(Mood::Well)),
            schemas: Arc::new(Mutex::new(HashMap::from([(41, REQUEST_SCHEMA.into()), (42, EVENT_SCHEMA.into())]))),
            asked: Arc::default(),
        };
        let server = fake.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (server, connection) = (server.clone(), connection.unwrap());
                std::thread::spawn(move || server.serve(connection));
            }
        });
        fake
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn put(&self, id: u32, schema: &str) {
        self.schemas.lock().unwrap().insert(id, schema.to_owned());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    async fn codec(&self) -> Codec {
        Codec::connect(&Registry::new(&self.url, None).unwrap(), &Topics::new("")).await.unwrap()
    }

    fn serve(&self, mut connection: TcpStream) {
        let mut reader = BufReader::new(connection.try_clone().unwrap());
        let (mut lines, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            lines.push(line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock().unwrap();
        let (status, text) = match mood {
            Mood::Well => self.answer(&lines[0], &body),
            Mood::Says(status) => (status, json!({"error_code": status, "message": "no"}).to_string()),
            Mood::Garbage(text) => (200, text.to_owned()),
            Mood::HangsUp => return,
            Mood::WantsLogin if lines.iter().any(|line| line.eq_ignore_ascii_case("authorization: Basic dTpwQHNz\r\n")) => {
                self.answer(&lines[0], &body)
            }
            Mood::WantsLogin => (401, String::new()),
            Mood::Silent => {
                // Ends when the client closes the connection.
                let _ = reader.read(&mut [0]);
                return;
            }
        };
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
        let _ = connection.write_all((head + &text).as_bytes());
    }

    fn answer(&self, request: &str, body: &[u8]) -> (u16, String) {
        let path = request.split(' ').nth(1).unwrap();
        let schemas = self.schemas.lock().unwrap();
        let found = match path.strip_prefix("/schemas/ids/") {
            Some(id) => schemas.get(&id.parse().unwrap()).map(|schema| json!({"schema": schema})),
            None => {
                let asked: Value = serde_json::from_slice(body).unwrap();
                let id = schemas.iter().find(|(_, schema)| asked["schema"] == **schema).map(|(id, _)| *id);
                id.map(|id| json!({"subject": "s", "version": 1, "id": id, "schema": asked["schema"]}))
            }
        };
        match found {
            Some(answer) => (200, answer.to_string()),
            None => (404, json!({"error_code": 40403, "message": "not found"}).to_string()),
        }
    }
}

/// An event written with id 50, whose schema says the same as ours in other words.
fn foreign_event(fake: &Fake) -> (Event, Vec<u8>, String) {
    let event = records::events()[2].1.clone();
    let mut bytes = Codec::offline().encode_event(&event).unwrap();
    bytes[1..5].copy_from_slice(&50u32.to_be_bytes());
    let mut schema: Value = serde_json::from_str(EVENT_SCHEMA).unwrap();
    schema["doc"] = json!("other words");
    let schema = schema.to_string();
    fake.put(50, &schema);
    (event, bytes, schema)
}

#[tokio::test]
async fn a_registry_in_trouble_is_asked_again_and_nothing_is_remembered_of_it() {
    let fake = Fake::start();
    let codec = fake.codec().await;
    let (event, bytes, _) = foreign_event(&fake);
    let moods = [
        Mood::Says(500),
        Mood::Says(503),
        Mood::Says(429),
        Mood::Says(401),
        Mood::HangsUp,
        Mood::Garbage("<html>"),
        Mood::Garbage("{}"),
        Mood::Garbage(r#"{"schema": 7}"#),
        Mood::Silent,
    ];
    for mood in moods {
        fake.set(mood);
        assert_eq!(codec.decode_event(&bytes, 5), Err(DecodeError::UnknownSchema(50)), "{mood:?}");
        let learned = codec.learn(50).await;
        assert!(learned.is_err(), "{mood:?}");
    }
    fake.set(Mood::Well);
    codec.learn(50).await.unwrap();
    assert_eq!(codec.decode_event(&bytes, 5), Ok(event));
}

#[tokio::test]
async fn a_login_in_the_address_is_used_and_never_shown() {
    let fake = Fake::start();
    fake.set(Mood::WantsLogin);
    let with = |login: &str| Registry::new(&fake.url.replace("http://", &format!("http://{login}")), None).unwrap();
    assert_eq!(with("u:p%40ss@").id_of("s", EVENT_SCHEMA).await.unwrap(), Some(42));
    for wrong in ["", "u:wrong-one@"] {
        let error = with(wrong).id_of("s", EVENT_SCHEMA).await.unwrap_err().to_string();
        assert!(error.contains("401") && error.contains("DOORBUSTER_REGISTRY") && !error.contains("wrong-one"), "{error}");
    }
    fake.set(Mood::HangsUp);
    let error = with("u:wrong-one@").id_of("s", EVENT_SCHEMA).await.unwrap_err().to_string();
    assert!(error.contains("did not answer") && !error.contains("wrong-one"), "{error}");
}

#[tokio::test]
async fn our_own_ids_and_learned_ones_need_no_registry() {
    let fake = Fake::start();
    let codec = fake.codec().await;
    let (event, bytes, _) = foreign_event(&fake);
    codec.learn(50).await.unwrap();
    let own = codec.encode_event(&event).unwrap();
    assert_eq!(own[..5], [0, 0, 0, 0, 42]);
    fake.set(Mood::HangsUp);
    let asked = fake.asked();
    codec.learn(50).await.unwrap();
    assert_eq!(codec.clone().decode_event(&bytes, 5), Ok(event.clone()));
    assert_eq!(codec.decode_event(&own, 5), Ok(event));
    assert_eq!(fake.asked(), asked);
}

#[tokio::test]
async fn ten_thousand_records_of_an_unknown_id_cost_a_handful_of_questions() {
    let fake = Fake::start();
    let codec = fake.codec().await;
    let asked = fake.asked();
    let bytes = [&[0], &999_999u32.to_be_bytes()[..], &[1, 2, 3]].concat();
    let lanes = (0..8).map(|_| {
        let (codec, bytes) = (codec.clone(), bytes.clone());
        tokio::spawn(async move {
            for _ in 0..1_250 {
                codec.learn(999_999).await.unwrap();
                assert_eq!(codec.decode_request(&bytes), Err(DecodeError::Unreadable("no schema has id 999999".into())));
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
    // Two for our own ids, three for the unknown one.
    assert_eq!(fake.asked() - asked, 5);
}

#[tokio::test]
async fn an_id_that_is_there_a_moment_later_is_found() {
    let fake = Fake::start();
    let codec = fake.codec().await;
    let (event, bytes, schema) = foreign_event(&fake);
    fake.schemas.lock().unwrap().remove(&50);
    let asked = fake.asked();
    let late = fake.clone();
    std::thread::spawn(move || {
        // The third question is the first about id 50.
        while late.asked() < asked + 3 {
            std::thread::yield_now();
        }
        late.put(50, &schema);
    });
    codec.learn(50).await.unwrap();
    assert_eq!(codec.decode_event(&bytes, 5), Ok(event));
}

#[tokio::test]
async fn a_registry_that_lost_or_swapped_our_schemas_is_not_believed() {
    let fake = Fake::start();
    let codec = fake.codec().await;
    let (_, bytes, schema) = foreign_event(&fake);
    type Change = fn(&mut HashMap<u32, String>);
    let changes: [(&str, Change); 3] = [
        ("emptied", HashMap::clear),
        ("filled again in another order", |s| {
            s.extend([(41, EVENT_SCHEMA.into()), (42, REQUEST_SCHEMA.into())]);
        }),
        ("one of two lost", |s| *s = HashMap::from([(41, REQUEST_SCHEMA.into()), (50, EVENT_SCHEMA.into())])),
    ];
    for (what, change) in changes {
        change(&mut fake.schemas.lock().unwrap());
        let learned = codec.learn(50).await;
        assert!(matches!(learned, Err(RegistryError::Unavailable { .. })), "{what}: {learned:?}");
        assert_eq!(codec.decode_event(&bytes, 5), Err(DecodeError::UnknownSchema(50)), "{what}");
    }
    *fake.schemas.lock().unwrap() = HashMap::from([(41, REQUEST_SCHEMA.into()), (42, EVENT_SCHEMA.into()), (50, schema)]);
    codec.learn(50).await.unwrap();
}

#[tokio::test]
async fn a_schema_of_something_else_makes_its_records_unreadable() {
    let fake = Fake::start();
    let codec = fake.codec().await;
    fake.put(60, r#"{"type": "record", "name": "Other", "fields": []}"#);
    fake.put(61, "syntax = \"proto3\";");
    for id in [60u32, 61] {
        codec.learn(id).await.unwrap();
        let read = codec.decode_request(&[&[0], &id.to_be_bytes()[..]].concat());
        assert!(matches!(read, Err(DecodeError::Unreadable(_))), "{read:?}");
    }
}

#[tokio::test]
async fn connecting_tells_a_missing_schema_from_a_registry_in_trouble() {
    let fake = Fake::start();
    let (registry, topics) = (Registry::new(&format!("{}/", fake.url), None).unwrap(), Topics::new("p-"));
    fake.schemas.lock().unwrap().remove(&42);
    match Codec::connect(&registry, &topics).await.err() {
        Some(ConnectError::NotRegistered { subject }) => assert_eq!(subject, "p-order-events-value"),
        other => panic!("{other:?}"),
    }
    fake.set(Mood::Says(500));
    let error = Codec::connect(&registry, &topics).await.err();
    assert!(matches!(error, Some(ConnectError::Registry(RegistryError::Unavailable { .. }))), "{error:?}");
    fake.set(Mood::Says(403));
    match Codec::connect(&registry, &topics).await.err() {
        Some(ConnectError::Registry(RegistryError::Refused { status: 403, message, .. })) => assert!(message.contains("no")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut() {
    static LONG: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| "x".repeat(5_000_000));
    let fake = Fake::start();
    fake.set(Mood::Garbage(&LONG));
    let error = Registry::new(&fake.url, None).unwrap().schema(1).await.unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[tokio::test]
async fn a_real_registry_keeps_ids_and_refuses_what_breaks_the_rules() {
    let endpoints = devstack::Endpoints::from_env().expect("no servers in the environment: run `make test`");
    let registry = Registry::new(&endpoints.registry, None).unwrap();
    let topics = Topics::new(&format!("t{}-", uuid::Uuid::new_v4().simple()));
    let subject = Topics::subject(&topics.events);
    let missing = Codec::connect(&registry, &topics).await.err();
    assert!(matches!(missing, Some(ConnectError::NotRegistered { .. })), "{missing:?}");
    assert_eq!(registry.id_of(&subject, EVENT_SCHEMA).await.unwrap(), None);

    let events_id = registry.register(&subject, EVENT_SCHEMA).await.unwrap();
    assert_eq!(registry.register(&subject, EVENT_SCHEMA).await.unwrap(), events_id, "the same text keeps its id");
    assert_eq!(registry.id_of(&subject, EVENT_SCHEMA).await.unwrap(), Some(events_id));
    let requests_id = registry.register(&Topics::subject(&topics.requests), REQUEST_SCHEMA).await.unwrap();
    assert_ne!(requests_id, events_id);

    let codec = Codec::connect(&registry, &topics).await.unwrap();
    let event = &records::events()[0].1;
    let bytes = codec.encode_event(event).unwrap();
    assert_eq!(bytes[..5], [&[0], &events_id.to_be_bytes()[..]].concat());

    let mut grown: Value = serde_json::from_str(EVENT_SCHEMA).unwrap();
    let field = json!({"name": "trace", "type": ["null", "string"], "default": null});
    grown["fields"].as_array_mut().unwrap().push(field);
    grown["fields"][8]["type"]["symbols"].as_array_mut().unwrap().push(json!("OrderRefunded"));
    let grown_id = registry.register(&subject, &grown.to_string()).await.unwrap();
    let mut newer = bytes.clone();
    newer[1..5].copy_from_slice(&grown_id.to_be_bytes());
    newer.push(0);
    assert_eq!(codec.decode_event(&newer, records::PARTITION), Err(DecodeError::UnknownSchema(grown_id)));
    codec.learn(grown_id).await.unwrap();
    assert_eq!(codec.decode_event(&newer, records::PARTITION).as_ref(), Ok(event));

    let mut broken = grown.clone();
    broken["fields"].as_array_mut().unwrap().retain(|field| field["name"] != "voucher_seq");
    let refused = registry.register(&subject, &broken.to_string()).await;
    assert!(matches!(refused, Err(RegistryError::Refused { status: 409 | 422, .. })), "{refused:?}");

    assert_eq!(registry.schema(u32::MAX).await.unwrap(), None);
    codec.learn(i32::MAX as u32).await.unwrap();
    newer[1..5].copy_from_slice(&i32::MAX.to_be_bytes());
    assert!(matches!(codec.decode_event(&newer, 0), Err(DecodeError::Unreadable(_))));
}

//! Every version of the schemas that was ever published: its bytes mean today what they meant then, and it and today's schema read each
//! other.

use std::collections::HashMap;
use std::fmt::Debug;

use events::{Codec, DecodeError, EVENT_SCHEMA, REQUEST_SCHEMA};

use crate::{compatibility, records};

/// The id under which a test teaches a version's schema; not one of the codec's own.
const ID: u32 = 7;

/// Checks the golden bytes of every version of a topic against the samples.
fn check<T: PartialEq + Debug>(
    topic: &str,
    current: &str,
    samples: &[(&str, T)],
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&Codec, &[u8]) -> Result<T, DecodeError>,
) {
    let lines: Vec<String> = samples.iter().map(|(name, sample)| records::line(name, &encode(sample)[5..])).collect();
    let versions = records::history(topic);
    let expected: HashMap<_, _> = samples.iter().map(|(name, sample)| (*name, sample)).collect();
    for version in &versions {
        let codec = Codec::offline();
        codec.teach(ID, &version.schema);
        for (name, datum) in &version.golden {
            let bytes = [&[0], &ID.to_be_bytes()[..], datum].concat();
            let read = decode(&codec, &bytes);
            assert_eq!(read.as_ref().ok(), expected.get(name.as_str()).copied(), "{} {name}: {read:?}", version.name);
        }
    }
    let last = versions.last().unwrap_or_else(|| panic!("{topic} was never published"));
    let today = format!("the text of schemas/{topic}.avsc is not the last one of history: publish it as a new version");
    assert_eq!(last.schema, current, "{today}");
    let golden: Vec<String> = last.golden.iter().map(|(name, datum)| records::line(name, datum)).collect();
    assert_eq!(golden, lines, "{} is not written as it was. Golden lines of today:\n{}\n", last.name, lines.join("\n"));
}

#[test]
fn requests_of_every_version_mean_what_they_meant() {
    let codec = Codec::offline();
    let encode = |request: &domain::Request| codec.encode_request(request).unwrap();
    check("order-requests", REQUEST_SCHEMA, &records::requests(), encode, |codec, bytes| codec.decode_request(bytes));
}

#[test]
fn events_of_every_version_mean_what_they_meant() {
    let codec = Codec::offline();
    let encode = |event: &domain::Event| codec.encode_event(event).unwrap();
    let decode = |codec: &Codec, bytes: &[u8]| codec.decode_event(bytes, records::PARTITION);
    check("order-events", EVENT_SCHEMA, &records::events(), encode, decode);
}

#[test]
fn the_samples_cover_every_kind() {
    let requests: Vec<_> = records::requests().iter().map(|(name, r)| (*name, format!("{:?}", r.body.kind()))).collect();
    let events: Vec<_> = records::events().iter().map(|(name, e)| (*name, e.body.name().to_owned())).collect();
    for (topic, samples, schema) in [("requests", requests, REQUEST_SCHEMA), ("events", events, EVENT_SCHEMA)] {
        for (name, kind) in &samples {
            assert_eq!(name.split('/').next(), Some(kind.as_str()), "{topic}");
        }
        for symbol in compatibility::kinds(schema).iter().filter(|s| *s != "UNKNOWN") {
            assert!(samples.iter().any(|(_, kind)| kind == symbol), "{topic}: no sample of {symbol}");
        }
    }
}

#[test]
fn every_pair_of_versions_reads_each_other() {
    for (topic, current) in [("order-requests", REQUEST_SCHEMA), ("order-events", EVENT_SCHEMA)] {
        let mut versions: Vec<(String, String)> =
            records::history(topic).into_iter().map(|version| (version.name, version.schema)).collect();
        versions.push((format!("{topic} of today"), current.to_owned()));
        for (at, (older, old)) in versions.iter().enumerate() {
            for (newer, new) in &versions[at..] {
                assert_eq!(compatibility::problems(old, new), Vec::<String>::new(), "{older} and {newer}");
            }
        }
    }
}

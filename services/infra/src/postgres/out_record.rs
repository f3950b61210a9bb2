//! Records that a lane sends, and the compact form in which its position row keeps them until they are published.
//!
//! Form 1: a byte 1, the topics (count, then each as length and bytes), then the records (count, then each as topic number, partition,
//! request offset, key, headers, payload). Numbers are unsigned LEB128; a key's length is stored plus 1, 0 meaning none.

/// A record to send, complete: what a lane stores in its position row and publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutRecord {
    pub topic: String,
    pub partition: i32,
    /// `order-requests` offset of the request it answers.
    pub request_offset: i64,
    pub key: Option<Vec<u8>>,
    pub payload: Vec<u8>,
    pub headers: Vec<(String, Vec<u8>)>,
}

/// Why stored bytes are no list of records: a newer version wrote them, or the row is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredRecordsError {
    #[error("the stored records have form {0}, this version knows form {FORM}")]
    Form(u8),
    #[error("the stored records are damaged")]
    Damaged,
}

const FORM: u8 = 1;

/// Topics a batch can name; far above the three there are, low enough that looking one up stays cheap.
const MAX_TOPICS: usize = 64;

impl OutRecord {
    /// The stored form of `records`, in order. No records give no bytes.
    pub fn encode_all(records: &[Self]) -> Vec<u8> {
        if records.is_empty() {
            return Vec::new();
        }
        let mut topics: Vec<&str> = Vec::new();
        for record in records {
            if !topics.contains(&record.topic.as_str()) {
                topics.push(&record.topic);
            }
        }
        let payloads: usize = records.iter().map(|r| r.payload.len() + 100).sum();
        let mut out = Vec::with_capacity(payloads);
        out.push(FORM);
        put_number(&mut out, topics.len() as u64);
        for topic in &topics {
            put_bytes(&mut out, topic.as_bytes());
        }
        put_number(&mut out, records.len() as u64);
        for record in records {
            let topic = topics.iter().position(|t| *t == record.topic).unwrap_or(0);
            put_number(&mut out, topic as u64);
            put_number(&mut out, u64::from(record.partition.cast_unsigned()));
            put_number(&mut out, record.request_offset.cast_unsigned());
            match &record.key {
                None => put_number(&mut out, 0),
                Some(key) => {
                    put_number(&mut out, key.len() as u64 + 1);
                    out.extend_from_slice(key);
                }
            }
            put_number(&mut out, record.headers.len() as u64);
            for (name, value) in &record.headers {
                put_bytes(&mut out, name.as_bytes());
                put_bytes(&mut out, value);
            }
            put_bytes(&mut out, &record.payload);
        }
        out
    }

    /// Reads what [`OutRecord::encode_all`] wrote; all bytes must be used.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, StoredRecordsError> {
        let Some((form, rest)) = bytes.split_first() else { return Ok(Vec::new()) };
        if *form != FORM {
            return Err(StoredRecordsError::Form(*form));
        }
        let mut input = Input(rest);
        input.records().filter(|_| input.0.is_empty()).ok_or(StoredRecordsError::Damaged)
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number as u8) | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// What is left to read; every step gives `None` where the bytes end too early or make no sense.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let low = u64::from(byte & 0x7f);
            if low << shift >> shift != low {
                return None;
            }
            number |= low << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A count of things that take at least one byte each, so that a damaged count cannot reserve more memory than the row has bytes.
    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= self.0.len())
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.count()?;
        self.take(length)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn records(&mut self) -> Option<Vec<OutRecord>> {
        let count = self.count().filter(|count| *count <= MAX_TOPICS)?;
        let topics = (0..count).map(|_| self.text()).collect::<Option<Vec<_>>>()?;
        let count = self.count()?;
        (0..count).map(|_| self.record(&topics)).collect()
    }

    fn record(&mut self, topics: &[String]) -> Option<OutRecord> {
        let topic = topics.get(usize::try_from(self.number()?).ok()?)?.clone();
        let partition = u32::try_from(self.number()?).ok()?.cast_signed();
        let request_offset = self.number()?.cast_signed();
        let key = match self.number()? {
            0 => None,
            length => Some(self.take(usize::try_from(length - 1).ok()?)?.to_vec()),
        };
        let count = self.count()?;
        let headers = (0..count).map(|_| Some((self.text()?, self.bytes()?.to_vec()))).collect::<Option<Vec<_>>>()?;
        let payload = self.bytes()?.to_vec();
        Some(OutRecord { topic, partition, request_offset, key, payload, headers })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_record() -> impl Strategy<Value = OutRecord> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
        let headers = proptest::collection::vec(("[a-z.]{0,20}", bytes()), 0..3);
        ("[ab]{0,2}", any::<i32>(), any::<i64>(), proptest::option::of(bytes()), bytes(), headers).prop_map(
            |(topic, partition, request_offset, key, payload, headers)| OutRecord {
                topic,
                partition,
                request_offset,
                key,
                payload,
                headers,
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_stored_comes_back(records in proptest::collection::vec(any_record(), 0..20)) {
            prop_assert_eq!(OutRecord::decode_all(&OutRecord::encode_all(&records)), Ok(records));
        }

        #[test]
        fn a_cut_row_is_damaged(records in proptest::collection::vec(any_record(), 1..5), cut in 1usize..40) {
            let bytes = OutRecord::encode_all(&records);
            let kept = bytes.len().saturating_sub(cut).max(1);
            prop_assert_eq!(OutRecord::decode_all(&bytes[..kept]), Err(StoredRecordsError::Damaged));
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = OutRecord::decode_all(&bytes);
            let _ = OutRecord::decode_all(&[&[1], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn another_form_and_trailing_bytes_are_refused() {
        assert_eq!(OutRecord::decode_all(&[2]), Err(StoredRecordsError::Form(2)));
        let record =
            OutRecord { topic: "t".into(), partition: 0, request_offset: 0, key: None, payload: vec![], headers: vec![] };
        let mut bytes = OutRecord::encode_all(&[record]);
        bytes.push(0);
        assert_eq!(OutRecord::decode_all(&bytes), Err(StoredRecordsError::Damaged));
    }
}
